"""What happens between a projection and a cache: norm, rotation, format, store (model_spec 2.4, 2.6, 2.7).

Window keys, compressed entries and index keys all take this way, and each step of it is a few hundred bytes a
row: one operation instead of four or more leaves a fast set free to make it one launch. These compositions
are the only place where the order of the steps is written.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .compressor import pool_group
from .norm import rms_norm
from .quantization import Format, fp8_round_trip, round_trip
from .rotary import rotate_
from .rows import RingIndex


def open_latents_(
    projected_rows_dim: Tensor,
    query_norm: Tensor,
    key_norm: Tensor,
    eps: float,
    turns_rows_dim: Tensor,
    window_pool: Tensor,
    window: RingIndex,
    *,
    keep: bool,
    quantized: bool,
) -> Tensor:
    """Query latents `[rows, query rank]`; the window keys beside them go to the pool's staging area.

    `projected` holds both side by side. With `keep` and an index that allows it, keys also go to their ring
    slots; else `keep_rows_` must follow the attention. With `quantized`, keys and latents come back from FP8:
    latents are only ever inputs of products.
    """
    rows, rank = projected_rows_dim.shape[0], query_norm.shape[0]
    latent, projected_key = projected_rows_dim.split([rank, key_norm.shape[0]], dim=-1)
    latent = rms_norm(latent, query_norm, eps)
    key = rotate_(rms_norm(projected_key, key_norm, eps), turns_rows_dim)
    key = fp8_round_trip(key) if quantized else key
    window_pool[window.staging : window.staging + rows] = key
    if keep and window.store_first:
        window_pool.index_copy_(0, window.store, key)
    return fp8_round_trip(latent) if quantized else latent


def keep_rows_(pool: Tensor, index: RingIndex) -> None:
    """Copy the rows in a pool's staging area to their ring slots, unless that happened when they came."""
    if index.store_first:
        return
    rows = index.store.shape[0]
    pool[: index.staging].index_copy_(0, index.store, pool[index.staging : index.staging + rows])


def store_key_(
    projected_rows_dim: Tensor,
    norm: Tensor,
    eps: float,
    turns_rows_dim: Tensor,
    form: Format,
    pool: Tensor,
    places: Tensor,
) -> None:
    """Norm, rotate, round and store index keys, or window keys of the draft block. `pool` is `[slots, dim]`;
    places of rows that must not be stored are scratch and may repeat."""
    key = rotate_(rms_norm(projected_rows_dim, norm, eps), turns_rows_dim)
    pool.index_copy_(0, places, round_trip(key, form))


def store_entry_(
    projected_rows_dim: Tensor,
    norm: Tensor,
    eps: float,
    turns_rows_dim: Tensor,
    form: Format,
    pool: Tensor,
    places: Tensor,
) -> Tensor:
    """Store compressed entries of one position each; returns the latents `[rows, dim]` before rotation."""
    latent = rms_norm(projected_rows_dim, norm, eps)
    rotated = rotate_(latent.clone(), turns_rows_dim)
    pool.index_copy_(0, places, round_trip(rotated, form))
    return latent


def store_pooled_entry_(
    value_gate_rows_dim: Tensor,
    group_pool: Tensor,
    group: RingIndex,
    norm: Tensor,
    eps: float,
    turns_rows_dim: Tensor,
    form: Format,
    pool: Tensor,
    places: Tensor,
) -> Tensor:
    """Store compressed entries pooled from groups of positions; returns their latents `[rows, dim]`.

    `value_gate` is wide: values, then gates. Every row computes a latent, also one that completes no group:
    the shape must not depend on positions, and `places` sends those to scratch. Rows are left in the ring of
    unfinished groups.
    """
    rows, ratio = group.keys.places.shape
    group_pool[group.staging : group.staging + rows] = value_gate_rows_dim
    members = group_pool.index_select(0, group.keys.slots).view(rows, ratio, -1)
    values, gates = members.chunk(2, dim=-1)
    pooled = pool_group(values, gates).to(pool.dtype)
    group_pool.index_copy_(0, group.store, value_gate_rows_dim)
    return store_entry_(pooled, norm, eps, turns_rows_dim, form, pool, places)


def grouped_linear(x_rows_dim: Tensor, weight_groups_out_in: Tensor) -> Tensor:
    """Each group of the inputs through a matrix of its own: `[rows, groups * out]`."""
    groups = weight_groups_out_in.shape[0]
    grouped = x_rows_dim.view(x_rows_dim.shape[0], groups, -1).transpose(0, 1)
    return torch.bmm(grouped, weight_groups_out_in.mT).transpose(0, 1).flatten(1)
