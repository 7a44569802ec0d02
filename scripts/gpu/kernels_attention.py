"""Attention, latents, stores and the step index on the card; see check_kernels.py.

Two sizes: the built-in model's (8 heads of 64, window 64, 64 entries) and the real one's (64 heads of 512,
window 128, 512 entries). A row's keys are counted as read once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from measuring import DEVICE, Row, measured, moved, relative_error
from torch import Tensor

from stepahead.devices.kernels.reference import attention as reference
from stepahead.devices.kernels.reference import latents as latents_reference
from stepahead.devices.kernels.reference import step_index as index_reference
from stepahead.devices.kernels.reference.attention import KeyIndex
from stepahead.devices.kernels.reference.rows import lay_rows, uniform_tiles
from stepahead.devices.kernels.reference.step_index import StepShape, StepTables
from stepahead.devices.kernels.triton import attention, latents, step_index
from stepahead.devices.kernels.triton.flash_attention import attend_by, flash_kernel

LIMITS = {torch.float32: 3e-6, torch.bfloat16: 1.2e-2}


@dataclass(frozen=True)
class Size:
    name: str
    heads: int
    dim: int
    rotary: int
    rank: int
    window: int
    entries: int


BUILT_IN = Size("built-in", 8, 64, 16, 128, 64, 64)
REAL = Size("real", 64, 512, 64, 1280, 128, 512)


def turns_of(rows: int, rotary: int) -> Tensor:
    angle = torch.rand(rows, rotary // 2, device=DEVICE) * 6.28
    return torch.stack((angle.cos(), angle.sin()), -1).flatten(1)


def places_of(rows: int, keys: int, slots: int) -> Tensor:
    places = torch.randint(1, slots, (rows, keys), device=DEVICE, dtype=torch.int32)
    return places.sort(1).values


def attend_row(size: Size, rows: int, dtype: torch.dtype, rounded: bool, small: bool) -> Row:
    slots = max(4096, rows * (size.window + 8))
    pools = [torch.randn(slots, size.dim, device=DEVICE).to(dtype) for _ in range(2)]
    query = torch.randn(rows, size.heads, size.dim, device=DEVICE).to(dtype)
    turns, sink = turns_of(rows, size.rotary), torch.randn(size.heads, device=DEVICE)
    window = KeyIndex(places_of(rows, size.window, slots), torch.float32)
    entries = KeyIndex(places_of(rows, size.entries, slots), torch.float32)
    entries.places[0, size.entries // 3 :] = -1
    scale = size.dim**-0.5

    def run(kernel, q: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        return kernel(q, turns, pools[0], window, pools[1], entries, sink, scale, round_probabilities=rounded)

    some = min(rows, 32)
    wide = torch.float32 if rounded else torch.float64
    narrow = dtype if rounded else torch.float64
    twin = reference.attend(
        query[:some].to(narrow, copy=True),
        turns[:some],
        pools[0].to(narrow),
        KeyIndex(window.places[:some], wide),
        pools[1].to(narrow),
        KeyIndex(entries.places[:some], wide),
        sink,
        scale,
        round_probabilities=rounded,
    )
    error = relative_error(run(attention.attend, query)[:some], twin)
    keys = size.window + size.entries
    return measured(
        "attend, rounded" if rounded else "attend",
        f"{size.name} rows {rows}",
        error,
        LIMITS[dtype],
        [partial(run, attention.attend, query)],
        dtype=dtype,
        moved_bytes=2 * moved(query) + rows * keys * size.dim * query.element_size(),
        flops=4 * rows * keys * size.heads * size.dim,
        twin=partial(run, reference.attend, query.clone()) if rows <= 64 else None,
        small=small,
    )


def library_row(rows: int) -> Row:
    """FlashMLA's kernel between ours that turn and join, beside ours alone (as the twin's time)."""
    kernel = flash_kernel(torch.cuda.get_device_capability())
    assert kernel is not None
    size, slots, dtype = REAL, max(4096, rows * 2), torch.bfloat16
    pools = [torch.randn(slots, size.dim, device=DEVICE).to(dtype) for _ in range(2)]
    query = torch.randn(rows, size.heads, size.dim, device=DEVICE).to(dtype)
    turns, sink = turns_of(rows, size.rotary), torch.randn(size.heads, device=DEVICE)
    window = KeyIndex(places_of(rows, size.window, slots), torch.float32)
    entries = KeyIndex(places_of(rows, size.entries, slots), torch.float32)
    entries.places[0, size.entries // 3 :] = entries.places[1] = -1
    arguments = (query, turns, pools[0], window, pools[1], entries, sink, size.dim**-0.5)
    ours = partial(attention.attend, *arguments, round_probabilities=True)
    theirs = partial(attend_by, kernel, *arguments)
    keys = size.window + size.entries
    return measured(
        "attend, FlashMLA", f"{size.name} rows {rows}", relative_error(theirs(), ours()), LIMITS[dtype],
        [theirs], dtype=dtype, moved_bytes=2 * moved(query) + rows * keys * size.dim * 2,
        flops=4 * rows * keys * size.heads * size.dim, twin=ours,
    )  # fmt: skip


def step_rows(size: Size, rows: int, dtype: torch.dtype, small: bool) -> list[Row]:
    """The step index, then what it indexes: latents, an entry pooled from two rows, an index key."""
    quantized = dtype == torch.bfloat16
    shape = StepShape(
        rows + 1, size.window, size.window + 6, {2: 7}, (1, 2), turns_of(2048, size.rotary),
        turns_of(2048, size.rotary),
    )  # fmt: skip
    first = torch.randint(200, 1000, (rows,), device=DEVICE)
    ones, zeros = torch.ones_like(first), torch.zeros_like(first)
    laid = lay_rows(first, ones, rows, uniform_tiles(rows, 1, DEVICE))
    table = torch.arange(1, 8 * rows + 1, device=DEVICE).view(rows, 8)
    tables = StepTables(ones.cumsum(0), table, zeros, zeros)
    index = index_reference.index_step(shape, laid, tables)
    ours = step_index.index_step(shape, laid, tables)
    wrong = (ours.window.keys.places != index.window.keys.places).sum() + (
        ours.entries[2].store != index.entries[2].store
    ).sum()
    name = f"{size.name} rows {rows}"
    out = [
        measured(
            "index_step", name, float(wrong), 0.0, [lambda: step_index.index_step(shape, laid, tables)],
            dtype=dtype, moved_bytes=rows * (4 * size.window + 16 * size.rotary + 80),
            twin=lambda: index_reference.index_step(shape, laid, tables).window.keys.bias, small=small,
        )
    ]  # fmt: skip
    projected = torch.randn(rows, size.rank + size.dim, device=DEVICE).to(dtype)
    norms = [torch.rand(n, device=DEVICE).to(dtype) + 0.5 for n in (size.rank, size.dim)]
    pool = torch.zeros(shape.state_slots * shape.window_ring + rows, size.dim, device=DEVICE, dtype=dtype)

    def open_latents(module) -> Tensor:  # type: ignore[no-untyped-def]
        return module.open_latents_(
            projected, *norms, 1e-20, index.turns[1], pool, index.window, keep=True, quantized=quantized
        )

    error = relative_error(open_latents(latents), open_latents(latents_reference))
    out.append(
        measured(
            "open_latents", name, error, LIMITS[dtype], [partial(open_latents, latents)], dtype=dtype,
            moved_bytes=3 * moved(projected), twin=partial(open_latents, latents_reference), small=small,
        )
    )  # fmt: skip
    value_gate = torch.randn(rows, 2 * size.dim, device=DEVICE)
    groups = torch.randn(shape.state_slots * 7 + rows, 2 * size.dim, device=DEVICE)
    entries = torch.zeros((8 * rows + 1) * 64, size.dim, device=DEVICE, dtype=dtype)

    def store_pooled(module) -> Tensor:  # type: ignore[no-untyped-def]
        return module.store_pooled_entry_(
            value_gate, groups, index.groups[2], norms[1], 1e-20, index.entry_turns[2],
            "fp4_e4m3" if quantized else "plain", entries, index.entries[2].store,
        )  # fmt: skip

    error = relative_error(store_pooled(latents), store_pooled(latents_reference))
    out.append(
        measured(
            "store_pooled_entry", name, error, LIMITS[dtype], [partial(store_pooled, latents)], dtype=dtype,
            moved_bytes=3 * moved(value_gate), twin=partial(store_pooled, latents_reference), small=small,
        )
    )  # fmt: skip
    return out


def run(small: bool) -> list[Row]:
    torch.manual_seed(0)
    rows = []
    for count in (3,) if small else (64, 384):
        rows.append(attend_row(BUILT_IN, count, torch.float32, False, small))
        rows.append(attend_row(BUILT_IN, count, torch.bfloat16, True, small))
        rows += step_rows(BUILT_IN, count, torch.float32, small)
    for count in (2,) if small else (1, 8, 64, 256, 1024):
        rows.append(attend_row(REAL, count, torch.bfloat16, True, small))
    rows.append(attend_row(REAL, 2, torch.bfloat16, False, small))
    rows += step_rows(REAL, 3 if small else 64, torch.bfloat16, small)
    if not small and flash_kernel(torch.cuda.get_device_capability()) is not None:
        rows += [library_row(count) for count in (64, 128, 256, 1024, 4096)]
    return rows
