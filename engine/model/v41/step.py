"""Index tensors of one step, shared by all its layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from stepahead.devices.kernels.operations import REFERENCE, Operations
from stepahead.devices.kernels.reference.rotary import plain_frequencies, rotary_table, yarn_frequencies
from stepahead.devices.kernels.reference.step_index import StepIndex, StepShape, StepTables

from .batch import Batch
from .caches import CacheShape, group_ring, window_ring
from .config import ModelConfig
from .numerics import Numerics
from .roles import LayerRole
from .rows import Rows

__all__ = ["Probe", "RotaryTables", "StepIndex", "StepIndexer", "rotary_tables", "step_shape"]


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


class StepIndexer:
    """Builds the index tensors of a step for one model and one set of caches."""

    def __init__(
        self,
        config: ModelConfig,
        roles: tuple[LayerRole, ...],
        tables: RotaryTables,
        shape: CacheShape,
        operations: Operations = REFERENCE,
    ) -> None:
        self._operations = operations
        self._shape = step_shape(config, roles, tables, shape)

    def producers(self, batch: Batch) -> StepIndex:
        """All rows, with the windows of layers below the boundary."""
        mask = batch.images.mask if batch.images is not None else None
        return self._index(batch.rows, batch, batch.window_floor, mask)

    def consumers(self, batch: Batch, producers: StepIndex) -> StepIndex:
        """The rows that go on above the boundary, with the truncated windows of prompts."""
        if batch.retained is None and batch.consumer_floor is batch.window_floor:
            return producers
        if batch.retained is None:
            window = self._operations.index_window(
                self._shape, batch.rows, _tables(batch, batch.consumer_floor)
            )
            return replace(producers, window=window)
        mask = producers.image_mask
        kept_mask = mask[batch.retained.index] if mask is not None else None
        return self._index(batch.retained.rows, batch, batch.consumer_floor, kept_mask)

    def _index(self, rows: Rows, batch: Batch, floor: Tensor, image_mask: Tensor | None) -> StepIndex:
        index = self._operations.index_step(self._shape, rows, _tables(batch, floor))
        return index if image_mask is None else replace(index, image_mask=image_mask)


def step_shape(
    config: ModelConfig, roles: tuple[LayerRole, ...], tables: RotaryTables, shape: CacheShape
) -> StepShape:
    """What is the same in all steps on these caches."""
    ratios = tuple(sorted({role.ratio for role in roles if role.ratio}))
    return StepShape(
        state_slots=shape.state_slots,
        window=config.sliding_window,
        window_ring=window_ring(config),
        group_rings={r: group_ring(config, r) for r in ratios if r > 1},
        ratios=ratios,
        window_turns=tables.window,
        compressed_turns=tables.compressed,
    )


def _tables(batch: Batch, floor: Tensor) -> StepTables:
    return StepTables(batch.state_slot, batch.block_table, floor, batch.entry_floor)
