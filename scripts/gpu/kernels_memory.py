"""Norms, embedding, features and the Engram memory on the card."""

from __future__ import annotations

from collections.abc import Callable

import torch
from kernels_streams import BUILT_IN, COPIES, FULL, LIMITS, Width
from measuring import DEVICE, DTYPES, Row, measured, moved, relative_error

from stepahead.devices.kernels.operations import REFERENCE
from stepahead.devices.kernels.triton.operations import TRITON


def norms(rows: int, dim: int, dtype: torch.dtype, small: bool) -> Row:
    xs = [torch.randn(rows, dim, device=DEVICE).to(dtype) for _ in range(4)]
    weight = torch.randn(dim, device=DEVICE)
    out = TRITON.rms_norm(xs[0], weight, 1e-20)
    expected = REFERENCE.rms_norm(xs[0].double(), weight.double(), 1e-20)
    return measured(
        "rms_norm",
        f"{rows} x {dim}",
        relative_error(out, expected),
        LIMITS[dtype],
        [_call(TRITON.rms_norm, x, weight, 1e-20) for x in xs],
        dtype=dtype,
        moved_bytes=2 * moved(out),
        twin=_call(REFERENCE.rms_norm, xs[0], weight, 1e-20),
        small=small,
    )


def memory(rows: int, width: Width, dtype: torch.dtype, small: bool) -> list[Row]:
    places, dim = 3 * width.memory_heads, width.memory_dim
    size = 1009 if small else 400_009
    primes = torch.full((3, width.memory_heads), size, device=DEVICE)
    offsets = (torch.arange(places, device=DEVICE) * size).view_as(primes)
    table = torch.randn(places * size, dim, device=DEVICE).to(dtype)
    multipliers = torch.tensor([76632096046245, 4839876093313, 35959672319349, 73987337458391], device=DEVICE)
    ngrams = [torch.randint(0, 99092, (rows, 4), device=DEVICE) for _ in range(4)]
    hashing = (multipliers, primes, offsets, table, dtype)
    found = TRITON.recall(ngrams[0], *hashing)
    wrong = 0.0 if torch.equal(found, REFERENCE.recall(ngrams[0], *hashing)) else 1.0
    table_rows = [
        measured(
            "recall",
            f"{rows} x {places} x {dim}",
            wrong,
            0.0,
            [_call(TRITON.recall, n, *hashing) for n in ngrams],
            dtype=dtype,
            moved_bytes=2 * moved(found),
            twin=_call(REFERENCE.recall, ngrams[0], *hashing),
            small=small,
        )
    ]
    streams = torch.randn(rows, COPIES, width.dim, device=DEVICE).to(dtype)
    key_value = torch.randn(rows, COPIES + 1, width.dim, device=DEVICE).to(dtype)
    weight = torch.randn(COPIES, width.dim, device=DEVICE)
    arguments = (streams, key_value, weight, None, 1e-20)
    expected = REFERENCE.apply_memory(streams.double(), key_value.double(), weight.double(), None, 1e-20)
    table_rows.append(
        measured(
            "apply_memory",
            f"{rows} x {COPIES} x {width.dim}",
            relative_error(TRITON.apply_memory(*arguments), expected),
            LIMITS[dtype],
            [_call(TRITON.apply_memory, *arguments)],
            dtype=dtype,
            moved_bytes=2 * moved(streams) + moved(key_value),
            twin=_call(REFERENCE.apply_memory, *arguments),
            small=small,
        )
    )
    return table_rows


def edges(rows: int, width: Width, dtype: torch.dtype, small: bool) -> list[Row]:
    """The bottom of a stack and the draft block's features."""
    table = torch.randn(width.vocab, width.dim, device=DEVICE).to(dtype)
    tokens = torch.randint(0, width.vocab, (rows,), device=DEVICE)
    streams, pre = TRITON.embed(table, tokens, COPIES)
    expected, expected_pre = REFERENCE.embed(table, tokens, COPIES)
    wrong = 0.0 if torch.equal(streams, expected) and torch.equal(pre, expected_pre) else 1.0
    shape = f"{rows} x {COPIES} x {width.dim}"
    taps = [torch.randn_like(streams) for _ in range(3)]
    mean = TRITON.mean_of_copies(taps)
    error = relative_error(mean, REFERENCE.mean_of_copies([tap.double() for tap in taps]))
    return [
        measured(
            "embed",
            shape,
            wrong,
            0.0,
            [_call(TRITON.embed, table, tokens, COPIES)],
            dtype=dtype,
            small=small,
            moved_bytes=moved(streams) * (1 + 1 / COPIES),
            twin=_call(REFERENCE.embed, table, tokens, COPIES),
        ),
        measured(
            "mean_of_copies",
            "3 x " + shape,
            error,
            LIMITS[dtype],
            [_call(TRITON.mean_of_copies, taps)],
            dtype=dtype,
            small=small,
            moved_bytes=moved(mean, *taps),
            twin=_call(REFERENCE.mean_of_copies, taps),
        ),
    ]


def _call(operation: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: operation(*arguments)


def run(small: bool) -> list[Row]:
    torch.manual_seed(1)
    sizes = (
        [(19, BUILT_IN), (5, FULL)] if small else [(64, BUILT_IN), (320, BUILT_IN), (64, FULL), (4096, FULL)]
    )
    table: list[Row] = []
    for dtype in DTYPES:
        for rows, width in sizes:
            table += memory(rows, width, dtype, small) + edges(rows, width, dtype, small)
            table.append(norms(rows, width.dim, dtype, small))
    return table
