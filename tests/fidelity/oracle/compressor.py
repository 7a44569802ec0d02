"""Compressed keys: one entry per `ratio` tokens and a small indexer key per entry (model_spec 2.6, 2.7).

Group j holds the tokens j*r .. j*r + r - 1 and nothing overlaps. Tokens of a group are pooled with a softmax
that runs separately in every channel. Ratio 1 pools nothing and therefore has no gate. An entry may be seen
only by queries at or after the last token of its group.
"""

from __future__ import annotations

import numpy as np

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import Array, rms_norm
from .rope import rotate
from .weights import Scope


def visible_entries(position: int, ratio: int) -> int:
    """How many compressed entries a query at `position` may see."""
    return (position + 1) // ratio


def latent(config: ModelConfig, compressor: Scope, group: list[Array]) -> Array:
    """[D]: the pooled vector before rotation; `group` is the attention input [d] of each of its tokens."""
    values = [compressor["wkv.weight"] @ u for u in group]
    if len(group) == 1:
        pooled = values[0]
    else:
        gates = [compressor["wgate.weight"] @ u for u in group]
        highest = np.max(gates, axis=0)
        exps = [np.exp(gate - highest) for gate in gates]
        total = np.sum(exps, axis=0)
        pooled = np.sum([e / total * value for e, value in zip(exps, values, strict=True)], axis=0)
    return rms_norm(pooled, compressor["norm.weight"], config.rms_norm_eps)


def entry(latent_vector: Array, index: int, ratio: int, freqs: list[float]) -> Array:
    """[D]: the key-and-value stored for group `index`, placed at the position of its first token."""
    return rotate(latent_vector, index * ratio, freqs)


def index_key(
    config: ModelConfig, indexer: Scope, latent_vector: Array, index: int, ratio: int, freqs: list[float]
) -> Array:
    """[index_head_dim]: what the indexer compares queries with; computed from the latent before rotation."""
    key = rms_norm(indexer["wk.weight"] @ latent_vector, indexer["k_norm.weight"], config.rms_norm_eps)
    return rotate(key, index * ratio, freqs)
