"""Attention of many query heads over one shared vector per position (model_spec 2.5).

The vector is key and value at once, so a row's keys are gathered once and serve all heads. A row sees two
sets: its sliding window and the compressed entries its indexer chose; they come from two pools and are named
by two index lists, padded with -1. One softmax runs over both and over a sink logit that takes probability
and gives no value.

Each row gathers its own keys, so a row's result does not depend on which rows share the call: prefill chunks
and decode rows mix freely. The price is that neighbouring prefill rows gather overlapping windows again.
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from .norm import wide_dtype
from .rotary import rotate_

CPU_ROWS = 256
"""Rows whose keys a CPU gathers at a time. The keys of more outgrow its caches, and from 32 MB on the
allocator gives their memory back to the system after every call: 2048 rows took twice as long."""

KEY_TILE = 64
"""Keys over which the publisher's kernel keeps one running maximum (model_spec 2.5, level N1)."""


class KeyIndex:
    """Which keys each row sees: computed once, used by every layer that sees the same ones.

    `places` `[rows, keys]` are places of a pool, -1 for no key. What the reference makes of them is kept; a
    kernel that reads the places themselves makes nothing. Where `repeats` rows in a row see the same keys, as
    those of a draft block do, the index is made of the first of each.
    """

    def __init__(self, places: Tensor, wide: torch.dtype, repeats: int = 1) -> None:
        self._own, self._wide, self.repeats = places, wide, repeats

    @classmethod
    def of(cls, places_rows_keys: Tensor, wide: torch.dtype) -> KeyIndex:
        """From places of a pool, -1 for no key; `wide` is the type of scores."""
        return cls(places_rows_keys, wide)

    @cached_property
    def places(self) -> Tensor:
        """`[rows, keys]`, those of all rows."""
        return self._own if self.repeats == 1 else self._own.repeat_interleave(self.repeats, dim=0)

    @cached_property
    def narrow(self) -> Tensor:
        """The places in 32 bits, contiguous."""
        return self.places.to(torch.int32).contiguous()

    @cached_property
    def once(self) -> KeyIndex:
        """The index of the rows that are not repeated."""
        return self if self.repeats == 1 else KeyIndex(self._own, self._wide)

    @cached_property
    def slots(self) -> Tensor:
        """`[rows * keys]`, places of a pool; 0 where there is no key."""
        return self.places.clamp(min=0).flatten()

    @cached_property
    def bias(self) -> Tensor:
        """`[rows, keys]`, 0 where there is a key, else -inf, in the wide type."""
        missing = self.places < 0
        bias = torch.zeros(missing.shape, dtype=self._wide, device=missing.device)
        return bias.masked_fill_(missing, -torch.inf)

    def of_rows(self, start: int, end: int) -> KeyIndex:
        """The index of some rows; what has been made of all rows is shared, not made again."""
        part = KeyIndex(self.places[start:end], self._wide)
        count = self.places.shape[1]
        part.__dict__["slots"] = self.slots[start * count : end * count]
        part.__dict__["bias"] = self.bias[start:end]
        return part


def attend(
    query_rows_heads_dim: Tensor,
    turns_rows_dim: Tensor,
    window_pool: Tensor,
    window_index: KeyIndex,
    entry_pool: Tensor | None,
    entry_index: KeyIndex | None,
    sink_heads: Tensor,
    scale: float,
    *,
    round_probabilities: bool = False,
) -> Tensor:
    """`sparse_attention` of queries that are not rotated yet: they are turned to their position, and what
    they attended to is turned back by it (model_spec 2.5). The queries may be overwritten.
    """
    turns = turns_rows_dim.unsqueeze(1)
    attended = sparse_attention(
        rotate_(query_rows_heads_dim, turns),
        window_pool,
        window_index,
        entry_pool,
        entry_index,
        sink_heads,
        scale,
        round_probabilities=round_probabilities,
    )
    return rotate_(attended, turns, inverse=True)


def sparse_attention(
    query_rows_heads_dim: Tensor,
    window_pool: Tensor,
    window_index: KeyIndex,
    entry_pool: Tensor | None,
    entry_index: KeyIndex | None,
    sink_heads: Tensor,
    scale: float,
    *,
    round_probabilities: bool = False,
) -> Tensor:
    """Attention outputs `[rows, heads, dim]` in the type of the queries; rows without keys give zero.

    Pools are `[slots, dim]`. With `round_probabilities` the probabilities are rounded to the query type tile
    by tile before the value product, as in the publisher's low-precision kernel; the denominator keeps the
    unrounded ones.
    """
    rows, heads, dim = query_rows_heads_dim.shape
    if window_index.repeats > 1 and entry_pool is None:
        # Rows that see the same keys are one row with the heads of all: their keys are gathered once.
        joined = query_rows_heads_dim.reshape(-1, window_index.repeats * heads, dim)
        sinks = sink_heads.repeat(window_index.repeats)
        attended = sparse_attention(
            joined, window_pool, window_index.once, None, None, sinks, scale,
            round_probabilities=round_probabilities,
        )  # fmt: skip
        return attended.view(rows, heads, dim)
    sources = [(window_pool, window_index)]
    if entry_pool is not None and entry_index is not None:
        sources.append((entry_pool, entry_index))
    if query_rows_heads_dim.device.type != "cpu" or rows <= CPU_ROWS:
        return _attend(query_rows_heads_dim, sources, sink_heads, scale, round_probabilities)
    pieces = [
        _attend(
            query_rows_heads_dim[start : start + CPU_ROWS],
            [(pool, index.of_rows(start, start + CPU_ROWS)) for pool, index in sources],
            sink_heads,
            scale,
            round_probabilities,
        )
        for start in range(0, rows, CPU_ROWS)
    ]
    return torch.cat(pieces)


def _attend(
    query_rows_heads_dim: Tensor,
    sources: list[tuple[Tensor, KeyIndex]],
    sink_heads: Tensor,
    scale: float,
    round_probabilities: bool,
) -> Tensor:
    """`sparse_attention` over keys gathered all at once."""
    wide = wide_dtype(query_rows_heads_dim.dtype)
    query, sink = query_rows_heads_dim.to(wide), sink_heads.to(wide)
    parts = [_Keys.gather(pool, index) for pool, index in sources]
    if round_probabilities:
        keys = torch.cat([part.keys for part in parts], dim=1)
        scores = torch.cat([part.scores(query, scale) for part in parts], dim=-1)
        return _tiled_average(scores, keys, sink, query_rows_heads_dim.dtype)
    return _weighted_average(parts, query, sink, scale).to(query_rows_heads_dim.dtype)


class _Keys(NamedTuple):
    """Gathered keys `[rows, keys, dim]` with their mask."""

    keys: Tensor
    bias: Tensor

    @classmethod
    def gather(cls, pool: Tensor, index: KeyIndex) -> _Keys:
        keys = pool.index_select(0, index.slots).view(*index.bias.shape, -1)
        return cls(keys.to(index.bias.dtype), index.bias)

    def scores(self, query_rows_heads_dim: Tensor, scale: float) -> Tensor:
        """`[rows, heads, keys]`."""
        return torch.baddbmm(self.bias.unsqueeze(1), query_rows_heads_dim, self.keys.mT, alpha=scale)


def _weighted_average(parts: list[_Keys], query: Tensor, sink_heads: Tensor, scale: float) -> Tensor:
    """One softmax over all parts and the sink. The parts are joined as scores, never as keys: those are
    `dim / heads` times larger, and copying them cost more than the arithmetic.

    The sink bounds the maximum from below, so a row without keys divides by exp(0), never by zero. A sink of
    -inf switches the sink off; then only a row that has a key keeps a finite maximum, and the clamp turns the
    others' -inf into a value whose exponentials are still zero.
    """
    scores = torch.cat([part.scores(query, scale) for part in parts], dim=-1)
    limits = torch.finfo(scores.dtype)
    top = torch.maximum(scores.amax(-1), sink_heads).clamp_(min=limits.min)
    weights = scores.sub_(top.unsqueeze(-1)).exp_()
    total = weights.sum(-1) + torch.exp(sink_heads - top)
    shares = weights.split([part.keys.shape[1] for part in parts], dim=-1)
    value = torch.bmm(shares[0], parts[0].keys)
    for share, part in zip(shares[1:], parts[1:], strict=True):
        value.baddbmm_(share, part.keys)
    return value / total.clamp_(min=limits.tiny).unsqueeze(-1)


def _tiled_average(scores: Tensor, keys: Tensor, sink_heads: Tensor, narrow: torch.dtype) -> Tensor:
    """The publisher's order of rounding: a running maximum over tiles of keys, probabilities rounded per
    tile."""
    lowest = torch.finfo(scores.dtype).min
    top = torch.full_like(scores[..., 0], lowest)
    total = torch.zeros_like(top)
    value = torch.zeros(*top.shape, keys.shape[-1], dtype=scores.dtype, device=scores.device)
    for start in range(0, scores.shape[-1], KEY_TILE):
        tile = scores[..., start : start + KEY_TILE]
        new_top = torch.maximum(top, tile.amax(-1))
        fade = torch.exp(top - new_top)
        weights = torch.exp(tile - new_top.unsqueeze(-1))
        total = total * fade + weights.sum(-1)
        rounded = weights.to(narrow).to(scores.dtype)
        tile_value = torch.bmm(rounded, keys[:, start : start + KEY_TILE])
        value = value * fade.unsqueeze(-1) + tile_value
        top = new_top
    # The sink joins the denominator last; relative to the larger of both maxima neither term overflows.
    peak = torch.maximum(top, sink_heads)
    fade = torch.exp(top - peak)
    total = total * fade + torch.exp(sink_heads - peak)
    smallest = torch.finfo(scores.dtype).tiny
    return (value * (fade / total.clamp_(min=smallest)).unsqueeze(-1)).to(narrow)
