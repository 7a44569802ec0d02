"""Attention, latents and the step index of the Triton set against their twins."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from stepahead.devices.kernels.reference import attention as reference
from stepahead.devices.kernels.reference.attention import KeyIndex
from stepahead.devices.kernels.triton import attention

from .comparing import assert_close, widened


def places_of(rows: int, keys: int, slots: int, *, front: bool, generator: torch.Generator) -> Tensor:
    """Random places; every row has a number of holes of its own, at the front or at the end."""
    places = torch.randint(1, slots, (rows, keys), generator=generator)
    holes = torch.randint(0, keys + 1, (rows, 1), generator=generator)
    holes[:1] = 0
    number = torch.arange(keys)
    missing = number < holes if front else number >= keys - holes
    return places.masked_fill(missing, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "heads", "dim", "rotary", "window", "entries"),
    [(3, 8, 64, 16, 16, 16), (2, 5, 32, 8, 7, 0), (2, 16, 16, 16, 40, 33), (0, 8, 64, 16, 16, 16)],
)
def test_attend(
    dtype: torch.dtype,
    rows: int,
    heads: int,
    dim: int,
    rotary: int,
    window: int,
    entries: int,
    device: torch.device,
) -> None:
    assert_attention_agrees(dtype, rows, heads, dim, rotary, window, entries, device, rounded=False)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("shared_rows", "few_rows"), [(2, 2), (0, 2), (0, 0)])
def test_attend_of_large_vectors(
    shared_rows: int, few_rows: int, rounded: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys shared out among programs; one program for all keys; many heads a program."""
    monkeypatch.setattr(attention, "SHARED_ROWS", shared_rows)
    monkeypatch.setattr(attention, "FEW_ROWS", few_rows)
    assert_attention_agrees(torch.bfloat16, 2, 20, 256, 16, 70, 100, device, rounded=rounded)


@pytest.mark.parametrize(("window", "entries"), [(70, 0), (30, 130)])
def test_attend_of_few_rows_by_tiles(window: int, entries: int, device: torch.device) -> None:
    assert_attention_agrees(torch.bfloat16, 3, 20, 256, 16, window, entries, device, rounded=False)


def test_a_row_attends_the_same_alone(device: torch.device) -> None:
    """Bit for bit, with keys in several tiles."""
    generator = torch.Generator().manual_seed(1)
    query, turns = (torch.randn(4, *shape, generator=generator) for shape in ((20, 256), (16,)))
    pool = torch.randn(90, 256, generator=generator).bfloat16().to(device)
    places = places_of(4, 70, 90, front=True, generator=generator).to(device)
    query, turns, sink = query.bfloat16().to(device), turns.to(device), torch.randn(20).to(device)

    def run(rows: slice) -> Tensor:
        index = KeyIndex.of(places[rows], torch.float32)
        return attention.attend(query[rows], turns[rows], pool, index, pool, index, sink, 0.06)

    assert torch.equal(run(slice(2, 3)), run(slice(None))[2:3])


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("heads", "dim", "entries"), [(40, 256, 100), (70, 256, 0), (64, 512, 33)])
def test_attend_of_many_rows_by_halves(
    heads: int, dim: int, entries: int, rounded: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "FEW_ROWS", 0)
    assert_attention_agrees(torch.bfloat16, 2, heads, dim, 16, 70, entries, device, rounded=rounded)


def test_attend_rounds_probabilities(device: torch.device) -> None:
    assert_attention_agrees(torch.bfloat16, 3, 8, 64, 16, 48, 16, device, rounded=True)


def assert_attention_agrees(
    dtype: torch.dtype,
    rows: int,
    heads: int,
    dim: int,
    rotary: int,
    window: int,
    entries: int,
    device: torch.device,
    *,
    rounded: bool,
) -> None:
    generator = torch.Generator().manual_seed(rows + heads + window)
    slots = 90

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    query, window_pool, entry_pool, sink = (
        random(rows, heads, dim), random(slots, dim), random(slots, dim), random(heads).float()
    )  # fmt: skip
    angle = torch.rand(rows, rotary // 2, generator=generator) * 6.28
    turns = torch.stack((angle.cos(), angle.sin()), -1).flatten(1).to(device)
    window_pool[0] = entry_pool[0] = 0
    seen = places_of(max(rows, 1), window, slots, front=True, generator=generator)[:rows].to(device)
    chosen = places_of(max(rows, 1), max(entries, 1), slots, front=False, generator=generator)[:rows].to(
        device
    )

    def run(kernel, wide: torch.dtype, *tensors: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        q, t, w, e, s = tensors
        entry = (e, KeyIndex.of(chosen, wide)) if entries else (None, None)
        return kernel(
            q.clone(), t, w, KeyIndex.of(seen, wide), *entry, s, dim**-0.5, round_probabilities=rounded
        )

    inputs = (query, turns, window_pool, entry_pool, sink)
    out = run(attention.attend, torch.float32, *inputs)
    assert out.dtype == dtype
    assert out.shape == query.shape
    if rows == 0:
        return
    if rounded:
        assert_close(out, run(reference.attend, torch.float32, *inputs), 8e-3)
    else:
        # Queries and outputs are rounded before and after they turn: twice as often as in other kernels.
        limit = {torch.float32: 2e-6, torch.bfloat16: 1.2e-2}[dtype]
        assert_close(out, run(reference.attend, torch.float64, *widened(*inputs)), limit)
