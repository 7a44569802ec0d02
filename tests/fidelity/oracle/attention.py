"""Attention with one vector per position that is key and value of every head (model_spec 2.4, 2.5).

Because the value contains the rotated part of the key, the output is rotated back by the query's own
position; only the distance between query and key survives. A sink logit per head takes part in the softmax
without having a value, so a head can attend to nothing.
"""

from __future__ import annotations

import math

import numpy as np

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import Array, rms_norm
from .rope import rotate
from .weights import Scope


def low_rank_query(config: ModelConfig, attn: Scope, u: Array) -> Array:
    """[q_lora]: the compressed query, which the indexer uses too."""
    return rms_norm(attn["wq_a.weight"] @ u, attn["q_norm.weight"], config.rms_norm_eps)


def queries(config: ModelConfig, attn: Scope, low_rank: Array, position: int, freqs: list[float]) -> Array:
    """[H, D]: one rotated query per head."""
    flat = attn["wq_b.weight"] @ low_rank
    return rotate(flat.reshape(config.num_attention_heads, config.head_dim), position, freqs)


def window_key(config: ModelConfig, attn: Scope, u: Array, position: int, freqs: list[float]) -> Array:
    """[D]: the vector a later query sees of this token, as key and as value."""
    return rotate(
        rms_norm(attn["wkv.weight"] @ u, attn["kv_norm.weight"], config.rms_norm_eps), position, freqs
    )


def window_positions(config: ModelConfig, position: int, lowest: int) -> range:
    """The last W positions up to and including `position`, none of them below `lowest`."""
    return range(max(position - config.sliding_window + 1, lowest, 0), position + 1)


def attend(heads: Array, keys: list[Array], sinks: Array) -> Array:
    """Softmax over `keys` plus the sink, per head: [H, D] -> [H, D]; without any key zeros."""
    outputs = np.zeros_like(heads)
    if not keys:
        return outputs
    matrix = np.array(keys)
    for h, query in enumerate(heads):
        scores = (matrix @ query) / math.sqrt(len(query))
        highest = max(float(np.max(scores)), float(sinks[h]))
        weights = np.exp(scores - highest)
        outputs[h] = weights @ matrix / (np.exp(sinks[h] - highest) + np.sum(weights))
    return outputs


def project_output(
    config: ModelConfig, attn: Scope, outputs: Array, position: int, freqs: list[float]
) -> Array:
    """Rotate head outputs [H, D] back, then the grouped low-rank projection to [d]."""
    groups, rank = config.o_groups, config.o_lora_rank
    grouped = rotate(outputs, -position, freqs).reshape(groups, -1)  # consecutive heads form a group
    wo_a = attn["wo_a.weight"].reshape(groups, rank, -1)
    latent = np.concatenate([wo_a[g] @ grouped[g] for g in range(groups)])
    return attn["wo_b.weight"] @ latent
