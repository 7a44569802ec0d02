"""Norms, embedding, features, the Engram memory and the fix-ups of states on the card."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from kernels_streams import BUILT_IN, COPIES, FULL, LIMITS, Width
from measuring import DEVICE, DTYPES, Row, measured, moved, relative_error

from stepahead.devices.kernels.operations import REFERENCE
from stepahead.devices.kernels.reference.fix_ups import FixUps
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


class States(NamedTuple):
    """What a state slot holds: windows of every layer, and groups of the sources that pool."""

    layers: int
    window: tuple[int, int]  # ring and width
    sources: int
    group: tuple[int, int]


STATES = {
    BUILT_IN: States(13, (70, 64), 2, (7, 128)),
    FULL: States(46, (134, 512), 3, (7, 1024)),
}


def fix_ups(copies: int, width: Width, small: bool) -> Row:
    """So many saves and a table entry of each, in a buffer for 64."""
    states, most = STATES[width], 5 if small else 64
    slots = 2 * most + 2
    shapes = [(states.window, torch.bfloat16)] * states.layers + [
        (states.group, torch.float32)
    ] * states.sources
    rings = tuple(torch.randn(slots, *shape, device=DEVICE).to(dtype) for shape, dtype in shapes)
    places = torch.arange(1, most + 1, device=DEVICE)
    made = FixUps(
        torch.tensor([copies, copies], device=DEVICE),
        torch.stack((places, most + 1 + places), 1),
        torch.stack((places, places % 5, places + 7), 1),
    )
    found = []
    for operations in (TRITON, REFERENCE):
        copied = tuple(ring.clone() for ring in rings)
        table = torch.zeros(1 + most, 64, dtype=torch.int64, device=DEVICE)
        operations.fix_up_(operations.open_state_pools(copied), table, made)
        found.append([*copied, table])
    wrong = sum(not torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))
    pools, table = TRITON.open_state_pools(rings), found[0][-1]
    return measured(
        "fix_up",
        f"{copies} x {moved(*(ring[:1] for ring in rings)) / 1024:.0f} KiB",
        float(wrong),
        0.0,
        [_call(TRITON.fix_up_, pools, table, made)],
        dtype=torch.bfloat16,
        moved_bytes=2 * copies * moved(*(ring[:1] for ring in rings)),
        twin=_call(REFERENCE.fix_up_, pools, table, made),
        small=small,
    )


def _call(operation: Callable[..., object], *arguments: object) -> Callable[[], object]:
    return lambda: operation(*arguments)


def run(small: bool) -> list[Row]:
    torch.manual_seed(1)
    sizes = (
        [(19, BUILT_IN), (5, FULL)] if small else [(64, BUILT_IN), (320, BUILT_IN), (64, FULL), (4096, FULL)]
    )
    table = [
        fix_ups(copies, width, small)
        for width in (BUILT_IN, FULL)
        for copies in ((0, 5) if small else (0, 1, 4, 64))
    ]
    for dtype in DTYPES:
        for rows, width in sizes:
            table += memory(rows, width, dtype, small) + edges(rows, width, dtype, small)
            table.append(norms(rows, width.dim, dtype, small))
    return table
