"""The DSpark draft block: three small layers that guess several tokens in one pass (model_spec 3).

Its keys about the past come from the target model: features of three target layers, projected once per token
("main" keys). A draft pass then runs a block [newest token, noise, noise, ...] whose rows see those keys and
each other, in both directions. A small Markov head corrects each guess with the guess before it, so that
neighbours fit together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import Array, rms_norm
from .attention import window_key, window_positions
from .hyper_connections import contract
from .layer import Rows, finish_attention, prepare_attention, run_experts
from .rope import frequencies
from .trace import Draft
from .weights import Scope


def main_keys(config: ModelConfig, weights: Scope, main_hidden: list[Array]) -> list[list[Array]]:
    """Keys [stage][position] of the target's features [targets * d] (3.1)."""
    freqs = frequencies(config, 0)
    first = weights.within("mtp.0.")
    keys: list[list[Array]] = [[] for _ in range(config.num_nextn_predict_layers)]
    for position, hidden in enumerate(main_hidden):
        m = rms_norm(first["main_proj.weight"] @ hidden, first["main_norm.weight"], config.rms_norm_eps)
        for stage, stage_keys in enumerate(keys):
            attn = weights.within(f"mtp.{stage}.attn.")
            stage_keys.append(window_key(config, attn, m, position, freqs))
    return keys


def block_rows(config: ModelConfig, weights: Scope, tokens: Sequence[int], first_position: int) -> Rows:
    """The draft block before its first layer."""
    streams = [np.tile(weights["embed.weight"][token], (config.hc_mult, 1)) for token in tokens]
    return Rows(
        positions=[first_position + i for i in range(len(tokens))],
        is_image=[False] * len(tokens),
        streams=streams,
        pre=[np.eye(config.hc_mult)[0] for _ in tokens],
    )


def run_block(
    config: ModelConfig, weights: Scope, rows: Rows, past_keys: list[list[Array]], position: int, lowest: int
) -> list[Array]:
    """Hidden vectors [d] of the block's rows; `past_keys` [stage][position], used up to `position`."""
    freqs = frequencies(config, 0)
    for stage in range(config.num_nextn_predict_layers):
        layer = weights.within(f"mtp.{stage}.")
        prepared = prepare_attention(config, layer, rows, freqs)
        past = [past_keys[stage][p] for p in window_positions(config, position, lowest)]
        seen = past + prepared.window_keys

        def keys_of(_row: int, seen: list[Array] = seen) -> list[Array]:
            return seen

        finish_attention(config, layer, rows, prepared, keys_of, freqs)
        run_experts(config, layer, rows, config.dspark_num_experts_per_tok)
    return [contract(stream, pre) for stream, pre in zip(rows.streams, rows.pre, strict=True)]


def guess(
    config: ModelConfig, weights: Scope, hidden: list[Array], golden_token: int, forced: Sequence[int]
) -> Draft:
    """Greedy tokens one after the other; `forced` replaces the first choices (logits are those before)."""
    last = weights.within(f"mtp.{config.num_nextn_predict_layers - 1}.")
    tokens: list[int] = []
    logits, confidences, previous = [], [], golden_token
    for i, h in enumerate(hidden):
        base = weights["head.weight"] @ rms_norm(h, last["norm.weight"], config.rms_norm_eps)
        markov = last["markov_head.embed.weight"][previous]
        corrected = base + last["markov_head.head.weight"] @ markov
        confidence = last["confidence_head.proj.weight"] @ np.concatenate([h, markov])
        previous = forced[i] if i < len(forced) else int(np.argmax(corrected))
        tokens.append(previous)
        logits.append(corrected)
        confidences.append(float(confidence[0]))
    return Draft(tokens, np.array(logits), confidences)
