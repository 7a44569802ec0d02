"""What the kernel checks share: errors against a wide reference, times on the device, and floors beside them.

A time says little without the least it could be. The floor of a kernel is the larger of two times: the bytes
it must move over the rate of a large copy on this very card, and its arithmetic over the rate of a large
matrix product, both measured once a run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DEVICE = torch.device("cuda")

DTYPES = [torch.bfloat16, torch.float32]
"""What families run in, where they have the choice; `check_kernels --dtype` leaves one."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    name: str
    shape: str
    dtype: torch.dtype
    error: float  # relative, against the twin in float64
    limit: float  # the error above which the check fails
    microseconds: float
    floor_microseconds: float
    reference_microseconds: float | None = None  # the twin on the same card, in the same type

    @property
    def failed(self) -> bool:
        return not self.error <= self.limit


@dataclass(frozen=True)
class Ceilings:
    """Measured on this card."""

    bytes_per_us: float
    flops_per_us: dict[torch.dtype, float]


@functools.cache
def ceilings() -> Ceilings:
    """A copy of 2 GiB (bytes read and written) and products of 8192-square random matrices."""
    source = torch.empty(1 << 31, dtype=torch.uint8, device=DEVICE).random_()
    copy = functools.partial(torch.empty_like(source).copy_, source)
    copied = 2 * source.numel() / microseconds([copy], graph=False, repeats=10)
    rates = {}
    for dtype in (torch.bfloat16, torch.float32):
        a, b = (torch.randn(8192, 8192, device=DEVICE).to(dtype) for _ in range(2))
        product = functools.partial(torch.mm, a, b)
        rates[dtype] = 2 * 8192**3 / microseconds([product], graph=False, repeats=5)
    return Ceilings(copied, rates)


def floor(moved_bytes: float, flops: float = 0.0, dtype: torch.dtype = torch.bfloat16) -> float:
    """Microseconds below which no implementation gets; `dtype` is that of the products' factors."""
    measured = ceilings()
    return max(moved_bytes / measured.bytes_per_us, flops / measured.flops_per_us[dtype])


def moved(*tensors: Tensor | None) -> int:
    """Bytes of tensors that are read or written once."""
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def relative_error(out: Tensor, reference: Tensor) -> float:
    """`|out - ref| / |ref|` in float64; NaN (which never passes) where either holds one."""
    wide, expected = out.to(torch.float64), reference.to(torch.float64)
    if expected.numel() == 0:
        return 0.0
    norm = torch.linalg.vector_norm(expected).clamp(min=1e-300)
    return float(torch.linalg.vector_norm(wide - expected) / norm)


def microseconds(calls: Sequence[Callable[[], object]], *, graph: bool = True, repeats: int = 20) -> float:
    """Median time of one call, launched one after another from a captured graph.

    Several calls over different inputs keep a small problem from living in the cache of the one before; one
    call is repeated. Without a graph (calls too large to need one) each is timed by itself.
    """
    for call in calls:
        call()
    torch.cuda.synchronize()
    if not graph:
        return _median([_timed(call) for _ in range(repeats) for call in calls])
    unrolled = list(calls) * max(1, 32 // len(calls))
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for call in unrolled:
            call()
    captured.replay()
    return _median([_timed(captured.replay) for _ in range(repeats)]) / len(unrolled)


def _timed(call: Callable[[], object]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def measured(
    name: str,
    shape: str,
    error: float,
    limit: float,
    calls: Sequence[Callable[[], object]],
    *,
    dtype: torch.dtype,
    moved_bytes: float,
    flops: float = 0.0,
    twin: Callable[[], object] | None = None,
    small: bool = False,
) -> Row:
    """A row whose error is known; times it and its twin, except under `small`, where nothing is timed."""
    if small:
        return Row(name, shape, dtype, error, limit, 0.0, 0.0)
    took = microseconds(calls)
    twin_took = None if twin is None else microseconds([twin])
    return Row(name, shape, dtype, error, limit, took, floor(moved_bytes, flops, dtype), twin_took)


def print_table(rows: Sequence[Row]) -> None:
    print(f"{'kernel':26}{'shape':26}{'type':9}{'error':>9}{'us':>9}{'floor':>8}{'ratio':>7}{'twin us':>9}")
    for row in rows:
        dtype = str(row.dtype).removeprefix("torch.")
        twin = "" if row.reference_microseconds is None else f"{row.reference_microseconds:9.1f}"
        ratio = row.microseconds / row.floor_microseconds if row.floor_microseconds else 0.0
        print(
            f"{row.name:26}{row.shape:26}{dtype:9}{row.error:9.1e}{row.microseconds:9.2f}"
            f"{row.floor_microseconds:8.2f}{ratio:7.1f}{twin:9}{'  FAILED' if row.failed else ''}"
        )
