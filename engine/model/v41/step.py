"""Index tensors of one step, shared by all its layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stepahead.devices.kernels.reference.rotary import plain_frequencies, rotary_table, yarn_frequencies

from .batch import Batch
from .caches import CacheShape, group_ring, window_ring
from .config import ModelConfig
from .numerics import Numerics
from .roles import LayerRole
from .rows import EntryIndex, RingIndex, Rows, entry_index, ring_index


class Probe(Protocol):
    """An observer of intermediate tensors, for tests and for curious people; None costs nothing."""

    def __call__(self, name: str, layer_id: int, tensor: Tensor) -> None: ...


@dataclass(frozen=True)
class RotaryTables:
    """(cos, sin) at every position a model may reach: layers with compressed keys use a base of their own."""

    window: Tensor  # [positions, rotary_dim]
    compressed: Tensor

    def of(self, ratio: int) -> Tensor:
        return self.compressed if ratio else self.window


def rotary_tables(
    config: ModelConfig, numerics: Numerics, device: torch.device, positions: int
) -> RotaryTables:
    dim, scaling = config.qk_rope_head_dim, config.rope_scaling
    window = plain_frequencies(config.rope_theta, dim)
    if scaling is None:
        compressed = plain_frequencies(config.compress_rope_theta, dim)
    else:
        compressed = yarn_frequencies(
            config.compress_rope_theta,
            dim,
            factor=scaling.factor,
            beta_fast=scaling.beta_fast,
            beta_slow=scaling.beta_slow,
            original_length=scaling.original_max_position_embeddings,
        )
    tables = [rotary_table(f, positions, numerics.dtype, device) for f in (window, compressed)]
    return RotaryTables(*tables)


@dataclass(frozen=True)
class StepIndex:
    """Where the rows of one step read and write. Layers above the YOCO boundary may have one of their own."""

    rows: Rows
    block_table: Tensor
    window: RingIndex
    groups: dict[int, RingIndex]  # by ratio, for ratios above 1
    entries: dict[int, EntryIndex]  # by ratio
    turns: dict[int, Tensor]  # rotary factors of the rows, by ratio: [rows, rotary_dim]
    entry_turns: dict[int, Tensor]  # rotary factors of the rows' entries, by ratio
    image_mask: Tensor | None  # [rows] bool


class StepIndexer:
    """Builds the index tensors of a step for one model and one set of caches."""

    def __init__(
        self, config: ModelConfig, roles: tuple[LayerRole, ...], tables: RotaryTables, shape: CacheShape
    ) -> None:
        self._config = config
        self._tables = tables
        self._wide = tables.window.dtype
        self._slots = shape.state_slots
        self._ratios = sorted({role.ratio for role in roles if role.ratio})

    def producers(self, batch: Batch) -> StepIndex:
        """All rows, with the windows of layers below the boundary."""
        mask = batch.images.mask if batch.images is not None else None
        return self._index(batch.rows, batch, batch.window_floor, mask)

    def consumers(self, batch: Batch, producers: StepIndex) -> StepIndex:
        """The rows that go on above the boundary, with the truncated windows of prompts."""
        if batch.retained is None and batch.consumer_floor is batch.window_floor:
            return producers
        if batch.retained is None:
            window = self._window(batch.rows, batch, batch.consumer_floor)
            return _with_window(producers, window)
        mask = producers.image_mask
        kept_mask = mask[batch.retained.index] if mask is not None else None
        return self._index(batch.retained.rows, batch, batch.consumer_floor, kept_mask)

    def _window(self, rows: Rows, batch: Batch, floor: Tensor) -> RingIndex:
        ring = window_ring(self._config)
        width = self._config.sliding_window
        return ring_index(
            rows,
            batch.state_slot,
            width=width,
            ring=ring,
            slots=self._slots,
            wide=self._wide,
            floor=floor,
        )

    def _group(self, rows: Rows, batch: Batch, ratio: int) -> RingIndex:
        ring = group_ring(self._config, ratio)
        return ring_index(rows, batch.state_slot, width=ratio, ring=ring, slots=self._slots, wide=self._wide)

    def _index(self, rows: Rows, batch: Batch, floor: Tensor, image_mask: Tensor | None) -> StepIndex:
        entries = {r: entry_index(rows, batch.block_table, r, batch.entry_floor) for r in self._ratios}
        return StepIndex(
            rows=rows,
            block_table=batch.block_table,
            window=self._window(rows, batch, floor),
            groups={r: self._group(rows, batch, r) for r in self._ratios if r > 1},
            entries=entries,
            turns={r: self._tables.of(r).index_select(0, rows.position) for r in (0, *self._ratios)},
            entry_turns={r: self._tables.of(r).index_select(0, i.position) for r, i in entries.items()},
            image_mask=image_mask,
        )


def _with_window(step: StepIndex, window: RingIndex) -> StepIndex:
    return StepIndex(
        step.rows, step.block_table, window, step.groups, step.entries, step.turns, step.entry_turns,
        step.image_mask
    )  # fmt: skip
