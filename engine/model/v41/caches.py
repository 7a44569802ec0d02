"""Everything a model keeps between steps (model_spec 5), in pools that sequences share.

Paged by 128-token blocks: compressed entries and their index keys, of the few layers that own them. By state
slot: the rings of window keys (every layer, draft layers included) and of unfinished compressor groups. Pools
are plain tensors in the activation type; low precision is imitated on the way in (`Numerics`), which is
exact, since every stored value is representable.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .config import ModelConfig
from .numerics import Numerics
from .roles import LayerRole, layer_roles
from .rows import BLOCK_TOKENS

MINIMUM_BACKTRACKING = 6


def backtracking(config: ModelConfig) -> int:
    """Positions a rejected speculation may take back: one more than a draft has tokens (model_spec 1.5)."""
    return max(MINIMUM_BACKTRACKING, config.dspark_block_size + 1)


def window_ring(config: ModelConfig) -> int:
    """Slots of a window ring: the window and what a rollback may need again (model_spec 5.3)."""
    return config.sliding_window + backtracking(config)


def group_ring(config: ModelConfig, ratio: int) -> int:
    """Slots of an unfinished-group ring (model_spec 2.6)."""
    return ratio + backtracking(config) - 1


@dataclass(frozen=True)
class CacheShape:
    """How much to allocate: block 0 and state slot 0 are scratch and count."""

    blocks: int
    state_slots: int
    max_rows: int  # rows of one step, the size of every staging area


@dataclass(frozen=True)
class Caches:
    """The pools of one model. Only one step at a time may run on them, in stream order."""

    shape: CacheShape
    window: tuple[Tensor, ...]  # per layer and draft layer: [slots * ring + max_rows, head_dim]
    groups: dict[int, Tensor]  # per source with ratio > 1: [slots * ring + max_rows, 2 * head_dim], wide
    entries: dict[int, Tensor]  # per KV source: [blocks * per_block, head_dim]
    index_keys: dict[int, Tensor]  # per index-K source: [blocks, per_block, index_dim]

    @property
    def nbytes(self) -> int:
        pools = [*self.window, *self.groups.values(), *self.entries.values(), *self.index_keys.values()]
        return sum(pool.numel() * pool.element_size() for pool in pools)


def allocate_caches(
    config: ModelConfig, numerics: Numerics, shape: CacheShape, device: torch.device
) -> Caches:
    """Zeroed pools: masked keys are multiplied by an exact zero, so scratch must be finite from the start."""
    roles = layer_roles(config)

    def zeros(*size: int, dtype: torch.dtype = numerics.dtype) -> Tensor:
        return torch.zeros(*size, dtype=dtype, device=device)

    def ring_pool(role: LayerRole) -> Tensor:
        ring = group_ring(config, role.ratio)
        return zeros(shape.state_slots * ring + shape.max_rows, 2 * config.head_dim, dtype=numerics.wide)

    window_slots = shape.state_slots * window_ring(config) + shape.max_rows
    return Caches(
        shape=shape,
        window=tuple(zeros(window_slots, config.head_dim) for _ in roles),
        groups={r.layer_id: ring_pool(r) for r in roles if r.is_kv_source and r.ratio > 1},
        entries={
            r.layer_id: zeros(shape.blocks * (BLOCK_TOKENS // r.ratio), config.head_dim)
            for r in roles
            if r.is_kv_source
        },
        index_keys={
            r.layer_id: zeros(shape.blocks, BLOCK_TOKENS // r.ratio, config.index_head_dim)
            for r in roles
            if r.is_index_k_source
        },
    )


def stored_block_bytes(config: ModelConfig, numerics: Numerics) -> int:
    """Bytes of one block as the pools store it (wider than the published format: see `cache_sizes`)."""
    size = numerics.dtype.itemsize
    roles = layer_roles(config)
    entries = sum(BLOCK_TOKENS // r.ratio * config.head_dim for r in roles if r.is_kv_source)
    keys = sum(BLOCK_TOKENS // r.ratio * config.index_head_dim for r in roles if r.is_index_k_source)
    return (entries + keys) * size


def stored_state_bytes(config: ModelConfig, numerics: Numerics) -> int:
    """Bytes of one state slot as the pools store it."""
    roles = layer_roles(config)
    windows = len(roles) * window_ring(config) * config.head_dim * numerics.dtype.itemsize
    groups = sum(group_ring(config, r.ratio) for r in roles if r.is_kv_source and r.ratio > 1)
    return windows + groups * 2 * config.head_dim * numerics.wide.itemsize


def state_rings(config: ModelConfig, caches: Caches) -> tuple[Tensor, ...]:
    """Views `[state slots, ring, width]` of all that a state slot holds: window rings and unfinished groups
    of all layers. A prefix hit restores the window of its last block by copying a slot of each.
    """
    rings = [(pool, window_ring(config)) for pool in caches.window]
    rings += [(caches.groups[r.layer_id], group_ring(config, r.ratio)) for r in layer_roles(config)
              if r.layer_id in caches.groups]  # fmt: skip
    slots = caches.shape.state_slots
    return tuple(pool[: slots * ring].view(slots, ring, -1) for pool, ring in rings)
