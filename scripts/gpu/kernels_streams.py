"""Hyper-connections on the card."""

from __future__ import annotations

from typing import NamedTuple

import torch
from measuring import DEVICE, DTYPES, Row, measured, moved, relative_error
from torch import Tensor

from stepahead.devices.kernels.operations import REFERENCE, Operations
from stepahead.devices.kernels.reference import hyper_connections as reference
from stepahead.devices.kernels.triton.operations import TRITON

COPIES = 4
LIMITS = {torch.float32: 1e-5, torch.bfloat16: 6e-3}


class Width(NamedTuple):
    """Sizes of one model."""

    dim: int
    iterations: int
    vocab: int
    memory_dim: int
    memory_heads: int


BUILT_IN = Width(256, 8, 4096, 32, 4)
FULL = Width(5120, 20, 129280, 256, 8)


class Sublayer:
    """Random inputs of hyper-connections."""

    def __init__(self, rows: int, width: Width, dtype: torch.dtype) -> None:
        dim, count = width.dim, (2 + COPIES) * COPIES
        self.output = torch.randn(rows, dim, device=DEVICE).to(dtype)
        self.streams = torch.randn(rows, COPIES, dim, device=DEVICE).to(dtype)
        self.post = torch.rand(rows, COPIES, device=DEVICE) * 2
        self.comb = torch.randn(rows, COPIES, COPIES, device=DEVICE).softmax(1)
        self.pre = torch.rand(rows, COPIES, device=DEVICE)
        self.mix = torch.randn(count, COPIES * dim, device=DEVICE) * (COPIES * dim) ** -0.5
        self.prepared = TRITON.prepare_mix(self.mix, COPIES)
        self.base, self.scale = (torch.randn(count, device=DEVICE) for _ in range(2))
        self.norm = 1 + torch.randn(dim, device=DEVICE) * 0.1
        self.sums = reference.sum_matrices(COPIES, torch.float32, DEVICE)
        self.constants = {"iterations": width.iterations, "hc_eps": 1e-6, "norm_eps": 1e-20}

    def expand_and_open(self, operations: Operations = TRITON) -> tuple[Tensor, ...]:
        return operations.expand_and_open(
            self.output,
            self.streams,
            self.post,
            self.comb,
            self.pre,
            self._mix_for(operations),
            self.base,
            self.scale,
            self.norm,
            self.sums,
            **self.constants,
        )

    def open(self, operations: Operations = TRITON) -> tuple[Tensor, ...]:
        mix = self._mix_for(operations)
        return operations.open_sublayer(
            self.streams, self.pre, mix, self.base, self.scale, self.norm, self.sums, **self.constants
        )

    def _mix_for(self, operations: Operations) -> Tensor:
        return self.prepared if operations is TRITON else self.mix

    def close(self, operations: Operations = TRITON) -> tuple[Tensor, ...]:
        return operations.close_stack(
            self.output, self.streams, self.post, self.comb, self.pre, self.norm, norm_eps=1e-20
        )

    def expected(self) -> tuple[Tensor, ...]:
        """`expand_and_open` in float64, with the kernel's roundings between its parts."""
        dtype = self.streams.dtype
        wide = [x.double() for x in (self.output, self.streams, self.post, self.comb)]
        new = reference.expand(*wide).to(dtype).double()
        read = reference.contract(new, self.pre.double()).to(dtype).double()
        sums = reference.sum_matrices(COPIES, torch.float64, DEVICE)
        fixed = [x.double() for x in (self.mix, self.base, self.scale, self.norm)]
        _, *rest = reference.open_sublayer(new, self.pre.double(), *fixed, sums, **self.constants)
        return new, reference.rms_norm(read, fixed[-1], 1e-20), *rest


def worst(outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> float:
    errors = [relative_error(out, ref) for out, ref in zip(outputs, expected, strict=True)]
    return max(errors) if all(e == e for e in errors) else float("nan")


def hyper_connections(rows: int, width: Width, dtype: torch.dtype, small: bool) -> list[Row]:
    sets = [Sublayer(rows, width, dtype) for _ in range(1 if rows * width.dim > 1 << 20 or small else 4)]
    one = sets[0]
    expected = one.expected()
    out = one.expand_and_open()
    flops = 2 * rows * one.mix.numel()
    shape = f"{rows} x {COPIES} x {width.dim}"
    fixed = moved(one.mix, one.pre, one.post, one.comb) + moved(*out[2:])
    arguments = {"dtype": dtype, "small": small}
    table = [
        measured(
            "expand_and_open",
            shape,
            worst(out, expected),
            LIMITS[dtype],
            [s.expand_and_open for s in sets],
            moved_bytes=fixed + moved(one.output, one.streams, *out[:2]),
            flops=flops,
            twin=lambda: one.expand_and_open(REFERENCE),
            **arguments,
        )
    ]
    one.streams = expected[0].to(dtype)
    table.append(
        measured(
            "open_sublayer",
            shape,
            worst(one.open(), expected[1:]),
            LIMITS[dtype],
            [s.open for s in sets],
            moved_bytes=fixed + moved(one.streams, out[1]),
            flops=flops,
            twin=lambda: one.open(REFERENCE),
            **arguments,
        )
    )
    wide = [x.double() for x in (one.output, one.streams, one.post, one.comb, one.pre, one.norm)]
    hidden, normed = one.close()
    error = relative_error(hidden, reference.close_stack(*wide, norm_eps=1e-20)[0])
    error = max(error, relative_error(normed, reference.rms_norm(hidden.double(), wide[-1], 1e-20)))
    table.append(
        measured(
            "close_stack",
            shape,
            error,
            2 * LIMITS[dtype],
            [s.close for s in sets],
            moved_bytes=moved(one.output, one.streams, hidden, normed),
            twin=lambda: one.close(REFERENCE),
            **arguments,
        )
    )
    table.append(_independence(one, shape, dtype))
    return table


def _independence(one: Sublayer, shape: str, dtype: torch.dtype) -> Row:
    """Rows alone, rows together, and the same rows again: equal bit for bit. The error is 0 or 1."""
    whole, again = one.expand_and_open(), one.expand_and_open()
    last = slice(one.streams.shape[0] - 1, None)
    for name in ("output", "streams", "post", "comb", "pre"):
        setattr(one, name, getattr(one, name)[last].contiguous())
    alone = one.expand_and_open()
    equal = all(
        torch.equal(a, b) and torch.equal(a[last], c) for a, b, c in zip(whole, again, alone, strict=True)
    )
    return Row("  the same bits alone", shape, dtype, 0.0 if equal else 1.0, 0.0, 0.0, 0.0)


def run(small: bool) -> list[Row]:
    torch.manual_seed(1)
    table: list[Row] = []
    if small:
        sizes = [(19, BUILT_IN), (5, FULL)]
    else:
        sizes = [(64, BUILT_IN), (320, BUILT_IN), (1, FULL), (64, FULL), (4096, FULL)]
    for dtype in DTYPES:
        for rows, width in sizes:
            if rows > 1000 and dtype == torch.float32:
                continue
            table += hyper_connections(rows, width, dtype, small)
    return table
