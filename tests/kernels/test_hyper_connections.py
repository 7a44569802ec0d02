"""Hyper-connections of narrow and wide rows, with and without the mixing in of an output, at odd sizes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from stepahead.devices.kernels.reference import hyper_connections as reference
from stepahead.devices.kernels.reference.hyper_connections import sum_matrices

from .comparing import assert_close, assert_rows_independent, widened

pytest.importorskip("triton")

from stepahead.devices.kernels.triton import hyper_connections as kernels
from stepahead.devices.kernels.triton import streams as simple_kernels

COEFFICIENTS = {"iterations": 5, "hc_eps": 1e-6, "norm_eps": 1e-20}


class Inputs:
    """Random streams and weights; `rows` and `fixed` are what the operations take."""

    def __init__(self, rows: int, copies: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(rows * dim)

        def normal(*shape: int, scale: float = 1.0) -> Tensor:
            return (torch.randn(shape, generator=generator) * scale).to(device)

        count = (2 + copies) * copies
        self.output = normal(rows, dim).to(dtype)
        self.streams = (normal(rows, copies, dim) * normal(rows, 1, 1).exp()).to(dtype)
        self.post = normal(rows, copies).sigmoid() * 2
        self.comb = normal(rows, copies, copies).softmax(1)
        self.pre = normal(rows, copies).sigmoid()
        self.mix = normal(count, copies * dim, scale=(copies * dim) ** -0.5)
        self.base, self.scale = normal(count), normal(count, scale=0.5)
        self.norm = 1 + normal(dim, scale=0.1)

    @property
    def expanding(self) -> list[Tensor]:
        return [self.output, self.streams, self.post, self.comb, self.pre]

    @property
    def fixed(self) -> list[Tensor]:
        return [self.mix, self.base, self.scale, self.norm]


def twin(inputs: Inputs, expands: bool) -> tuple[Tensor, ...]:
    """The reference in float64. Streams between the two parts are rounded as the kernel rounds them."""
    output, streams, post, comb, pre = widened(*inputs.expanding)
    fixed = widened(*inputs.fixed)
    sums = sum_matrices(streams.shape[1], torch.float64, streams.device)
    new = (
        reference.expand(output, streams, post, comb).to(inputs.streams.dtype).double()
        if expands
        else streams
    )
    read = reference.contract(new, pre).to(inputs.streams.dtype).double()
    _, *coefficients = reference.open_sublayer(new, pre, *fixed, sums, **COEFFICIENTS)
    normed = reference.rms_norm(read, fixed[-1], COEFFICIENTS["norm_eps"])
    return (new, normed, *coefficients) if expands else (normed, *coefficients)


def run(inputs: Inputs, expands: bool) -> tuple[Tensor, ...]:
    sums = sum_matrices(inputs.streams.shape[1], torch.float32, inputs.streams.device)
    if expands:
        return kernels.expand_and_open(*inputs.expanding, *inputs.fixed, sums, **COEFFICIENTS)
    return kernels.open_sublayer(inputs.streams, inputs.pre, *inputs.fixed, sums, **COEFFICIENTS)


@pytest.fixture(params=["narrow", "wide"])
def widths(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways, at widths that are quick to interpret."""
    if request.param == "wide":
        monkeypatch.setattr(kernels, "NARROW", 0)
        monkeypatch.setattr(kernels, "FEW_ROWS", 16)
    for name in ("SLAB", "NARROW_COLUMNS", "NORM_COLUMNS"):
        monkeypatch.setattr(kernels, name, 16)


@pytest.mark.usefixtures("widths")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("expands", [False, True])
@pytest.mark.parametrize(
    ("rows", "copies", "dim"), [(1, 4, 16), (16, 4, 20), (17, 4, 33), (19, 4, 33), (5, 2, 40)]
)
def test_kernel_equals_twin(
    rows: int, copies: int, dim: int, expands: bool, dtype: torch.dtype, device: torch.device
) -> None:
    inputs = Inputs(rows, copies, dim, dtype, device)
    for out, expected in zip(run(inputs, expands), twin(inputs, expands), strict=True):
        # A sum on the edge of two bfloat16 values may fall to either side; what follows then differs by that.
        assert_close(out, expected, 5e-6 if dtype == torch.float32 else 6e-3)


@pytest.mark.usefixtures("widths")
def test_bfloat16_streams_lose_nothing_on_the_way_to_the_coefficients(device: torch.device) -> None:
    inputs = Inputs(4, 4, 33, torch.bfloat16, device)
    for out, expected in zip(run(inputs, False)[1:], twin(inputs, False)[1:], strict=True):
        assert_close(out, expected, 2e-6)


@pytest.mark.usefixtures("widths")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_does_not_depend_on_the_others(dtype: torch.dtype, device: torch.device) -> None:
    inputs = Inputs(17, 4, 33, dtype, device)
    sums = sum_matrices(4, torch.float32, device)

    def operation(rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return kernels.expand_and_open(*rows, *inputs.fixed, sums, **COEFFICIENTS)

    assert_rows_independent(operation, inputs.expanding, row=16)
    assert_rows_independent(operation, [rows[:7] for rows in inputs.expanding], row=3)


@pytest.mark.usefixtures("widths")
def test_zero_streams_give_zeros_not_nan(device: torch.device) -> None:
    inputs = Inputs(2, 4, 32, torch.float32, device)
    inputs.streams.zero_()
    normed, *coefficients = run(inputs, False)
    assert torch.equal(normed, torch.zeros_like(normed))
    assert all(bool(x.isfinite().all()) for x in coefficients)


@pytest.mark.usefixtures("widths")
@pytest.mark.filterwarnings("ignore:All-NaN slice")  # by the interpreter's numpy
@pytest.mark.parametrize("rows", [9, 18])
def test_a_row_of_nan_stays_alone(rows: int, device: torch.device) -> None:
    inputs = Inputs(rows, 4, 33, torch.bfloat16, device)
    clean = run(inputs, True)
    inputs.streams[7] = torch.nan
    others = torch.arange(rows, device=device) != 7
    for out, expected in zip(run(inputs, True), clean, strict=True):
        assert torch.equal(out[others], expected[others])
        assert bool(out[7].isnan().any())


@pytest.mark.usefixtures("widths")
def test_no_rows(device: torch.device) -> None:
    inputs = Inputs(0, 4, 24, torch.float32, device)
    shapes = [tuple(out.shape) for out in run(inputs, True)]
    assert shapes == [(0, 4, 24), (0, 24), (0, 4), (0, 4), (0, 4, 4)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "copies", "dim"), [(3, 4, 40), (1, 3, 1030), (0, 4, 8)])
def test_simple_passes_equal_their_twins(
    rows: int, copies: int, dim: int, dtype: torch.dtype, device: torch.device
) -> None:
    inputs = Inputs(rows, copies, dim, dtype, device)
    wide = widened(*inputs.expanding)
    new = reference.expand(*wide[:4])
    assert_close(simple_kernels.expand(*inputs.expanding[:4]), new)
    hidden, normed = simple_kernels.close_stack(*inputs.expanding, inputs.norm, norm_eps=1e-20)
    expected, _ = reference.close_stack(*wide, inputs.norm.double(), norm_eps=1e-20)
    assert_close(hidden, expected, 1e-2 if dtype == torch.bfloat16 else None)
    assert_close(normed, reference.rms_norm(hidden.double(), inputs.norm.double(), 1e-20))
    taps = [inputs.streams, inputs.streams.flip(1) * 2]
    assert_close(simple_kernels.mean_of_copies(taps), reference.mean_of_copies(widened(*taps)))


@pytest.mark.parametrize(("rows", "copies", "dim"), [(3, 4, 40), (2, 3, 1030), (0, 4, 8)])
def test_embed(rows: int, copies: int, dim: int, device: torch.device) -> None:
    table = torch.randn(11, dim, device=device).to(torch.bfloat16)
    tokens = torch.arange(rows, device=device) * 3 % 11
    streams, pre = simple_kernels.embed(table, tokens, copies)
    expected, expected_pre = reference.embed(table, tokens, copies)
    assert torch.equal(streams, expected)
    assert torch.equal(pre, expected_pre)
    assert pre.dtype == torch.float32


@pytest.mark.parametrize("sequences", [0, 3])
def test_embed_drafts(sequences: int, device: torch.device) -> None:
    table = torch.randn(11, 40, device=device)
    newest = torch.arange(sequences, device=device) + 4
    out = simple_kernels.embed_drafts(table, newest, 2, 5, 4)
    expected = reference.embed_drafts(table, newest, 2, 5, 4)
    assert all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))


def test_other_types_and_copies_take_the_reference(device: torch.device) -> None:
    for copies, dtype in ((3, torch.float32), (4, torch.float64)):
        inputs = Inputs(2, copies, 16, dtype, device)
        fixed = inputs.fixed if dtype == torch.float32 else widened(*inputs.fixed)
        rows = inputs.expanding if dtype == torch.float32 else widened(*inputs.expanding)
        sums = sum_matrices(copies, dtype, device)
        out = kernels.expand_and_open(*rows, *fixed, sums, **COEFFICIENTS)
        expected = reference.expand_and_open(*rows, *fixed, sums, **COEFFICIENTS)
        assert all(torch.equal(a, b) for a, b in zip(out, expected, strict=True))
