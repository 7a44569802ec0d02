"""One layer: an attention sublayer and an expert sublayer around the residual streams (model_spec 2.2, 8).

The same function runs a trunk layer over the whole sequence and a draft layer over the draft block; they
differ in the keys that a row sees, which the caller supplies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import Array, rms_norm
from .attention import attend, low_rank_query, project_output, queries, window_key
from .experts import Routing, mixture, route
from .hyper_connections import Mixes, contract, mixes, spread
from .weights import Scope


@dataclass
class Rows:
    """The state carried from layer to layer, one element per row."""

    positions: list[int]
    is_image: list[bool]
    streams: list[Array]  # [c, d]
    pre: list[Array]  # [c], computed by the previous sublayer: the shift of the hyper-connections


@dataclass
class AttentionRows:
    """What the attention sublayer knows about its rows before anything attends."""

    contracted: list[Array]  # [d]
    normed: list[Array]  # [d]
    low_rank: list[Array]  # [q_lora]
    window_keys: list[Array]  # [D]
    mixes: list[Mixes]


def _mixes(config: ModelConfig, layer: Scope, sublayer: str, stream: Array) -> Mixes:
    name = f"hc_{sublayer}_"
    return mixes(config, stream, layer[name + "fn"], layer[name + "base"], layer[name + "scale"])


def prepare_attention(config: ModelConfig, layer: Scope, rows: Rows, freqs: list[float]) -> AttentionRows:
    """Mixes, normed inputs, compressed queries and window keys of all rows."""
    attn = layer.within("attn.")
    prepared = AttentionRows([], [], [], [], [])
    for position, stream, pre in zip(rows.positions, rows.streams, rows.pre, strict=True):
        x = contract(stream, pre)
        u = rms_norm(x, layer["attn_norm.weight"], config.rms_norm_eps)
        prepared.contracted.append(x)
        prepared.normed.append(u)
        prepared.low_rank.append(low_rank_query(config, attn, u))
        prepared.window_keys.append(window_key(config, attn, u, position, freqs))
        prepared.mixes.append(_mixes(config, layer, "attn", stream))
    return prepared


def finish_attention(
    config: ModelConfig,
    layer: Scope,
    rows: Rows,
    prepared: AttentionRows,
    keys_of: Callable[[int], list[Array]],
    freqs: list[float],
) -> None:
    """Attend row by row; `keys_of(i)` lists every key that row i sees."""
    attn = layer.within("attn.")
    for i, position in enumerate(rows.positions):
        heads = queries(config, attn, prepared.low_rank[i], position, freqs)
        outputs = attend(heads, keys_of(i), attn["attn_sink"])
        y = project_output(config, attn, outputs, position, freqs)
        rows.streams[i] = spread(rows.streams[i], y, prepared.mixes[i])
        rows.pre[i] = prepared.mixes[i].pre


def run_experts(config: ModelConfig, layer: Scope, rows: Rows, per_token: int) -> list[Routing]:
    """The expert sublayer of all rows."""
    ffn, routings = layer.within("ffn."), []
    for i, stream in enumerate(rows.streams):
        coefficients = _mixes(config, layer, "ffn", stream)
        u = rms_norm(contract(stream, rows.pre[i]), layer["ffn_norm.weight"], config.rms_norm_eps)
        routing = route(config, ffn.within("gate."), u, per_token, rows.is_image[i])
        rows.streams[i] = spread(stream, mixture(config, ffn, u, routing), coefficients)
        rows.pre[i] = coefficients.pre
        routings.append(routing)
    return routings
