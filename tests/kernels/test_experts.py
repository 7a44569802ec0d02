"""The feed-forward kernels against their twins: routing, sorting, and experts in every storage format."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from stepahead.devices.kernels.quantized import Weight, plain
from stepahead.devices.kernels.reference import experts as reference
from stepahead.devices.kernels.reference.quantization import fp8_round_trip
from stepahead.devices.kernels.triton import experts, launching, products, routing
from stepahead.engine.model.checkpoint.formats import quantize
from stepahead.engine.model.checkpoint.storage import StorageKind
from tests.kernels.comparing import assert_close

LIMIT, SCALING = 1.5, 1.5


def stored(*shape: int, kind: StorageKind | None, dtype: torch.dtype) -> Weight:
    """A random stack of matrices, plain in `dtype` or quantized."""
    values = torch.randn(*shape) * shape[-1] ** -0.5
    if kind is None:
        return values.to(dtype)
    whole = quantize(values.view(-1, shape[-1]), kind).kept()
    return whole if len(shape) == 2 else whole.view(*shape)


def random_experts(
    count: int, dim: int, inner: int, kind: StorageKind | None, shared: StorageKind | None, dtype: torch.dtype
) -> reference.Experts:
    return reference.Experts(
        stored(count, 2 * inner, dim, kind=kind, dtype=dtype),
        stored(count, dim, inner, kind=kind, dtype=dtype),
        stored(2 * inner, dim, kind=shared, dtype=dtype),
        stored(dim, inner, kind=shared, dtype=dtype),
    )


def placed(mixture: reference.Experts, device: torch.device) -> reference.Experts:
    return reference.Experts(*(getattr(mixture, f.name).to(device) for f in dataclasses.fields(mixture)))


def in_float64(mixture: reference.Experts) -> reference.Experts:
    weights = (getattr(mixture, field.name) for field in dataclasses.fields(mixture))
    return reference.Experts(*(plain(weight, torch.float64).double() for weight in weights))


def inputs(rows: int, dim: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return (torch.randn(rows, dim) * 1.5).to(dtype).to(device)


FORMATS = [
    (None, None),
    (StorageKind.MXFP4, StorageKind.FP8_BLOCK),
    (StorageKind.FP8_BLOCK, StorageKind.FP8_BLOCK),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("routed", "shared"), FORMATS, ids=["plain", "mxfp4", "fp8"])
@pytest.mark.parametrize(
    ("rows", "count", "top_k", "dim", "inner"), [(1, 4, 2, 64, 32), (19, 5, 3, 96, 64), (0, 4, 2, 64, 32)]
)
def test_a_sublayer_matches_its_twin(
    device: torch.device, dtype: torch.dtype, routed: StorageKind | None, shared: StorageKind | None,
    rows: int, count: int, top_k: int, dim: int, inner: int,
) -> None:  # fmt: skip
    mixture = placed(random_experts(count, dim, inner, routed, shared, dtype), device)
    x, gate = inputs(rows, dim, dtype, device), (torch.randn(count, dim) * dim**-0.5).to(device, dtype)
    biases = torch.randn(2, count, device=device) * 0.1
    images = torch.arange(rows, device=device) % 3 == 0
    arguments = (x, gate, biases[0], biases[1], images, top_k, SCALING, mixture)
    ours = routing.route_rows(*arguments, quantized=False)
    theirs = reference.route_rows(*arguments, quantized=False)
    dense = torch.zeros(2, rows, count, device=device)
    assert_close(
        dense[0].scatter(1, ours.chosen, ours.shares), dense[1].scatter(1, theirs.chosen, theirs.shares)
    )
    out = experts.mix_experts(x, ours, mixture, LIMIT, quantized=False)
    assert out.dtype == dtype
    wide = reference.Routing(ours.chosen, ours.shares.double())
    expected = reference.mix_experts(x.double(), wide, in_float64(mixture), LIMIT, quantized=False)
    assert_close(out, expected, 2e-6 if dtype == torch.float32 else 1e-2)
    # A choice made by another set of operations is sorted and gives the same.
    plainly = reference.Routing(ours.chosen, ours.shares)
    assert torch.equal(experts.mix_experts(x, plainly, mixture, LIMIT, quantized=False), out)


@pytest.mark.parametrize(("routed", "shared"), FORMATS[1:], ids=["mxfp4", "fp8"])
def test_the_quantized_level_rounds_where_its_twin_does(
    device: torch.device, routed: StorageKind, shared: StorageKind
) -> None:
    """Inputs are rounded bit for bit; hidden activations nearly so: one sum apart may be one code apart."""
    mixture = placed(random_experts(4, 96, 64, routed, shared, torch.bfloat16), device)
    x, gate = inputs(19, 96, torch.bfloat16, device), (torch.randn(4, 96) / 10).to(device, torch.bfloat16)
    bias = torch.zeros(4, device=device)
    ours = routing.route_rows(x, gate, bias, bias, None, 2, SCALING, mixture, quantized=True)
    rounded = fp8_round_trip(x)
    assert torch.equal(ours.inputs, rounded)
    if routed is StorageKind.MXFP4:
        assert torch.equal(ours.parted, torch.cat((rounded[:, 0::2], rounded[:, 1::2]), dim=1))
    out = experts.mix_experts(x, ours, mixture, LIMIT, quantized=True)
    expected = reference.mix_experts(x, ours, mixture, LIMIT, quantized=True)
    exact = reference.mix_experts(x, ours, mixture, LIMIT, quantized=False)
    assert_close(out, expected, 2.5e-2)
    assert (out - expected).norm() < (exact - expected).norm() / 2  # rounding was done, not left out


@pytest.mark.parametrize("quantized", [False, True])
def test_the_shared_expert_of_many_rows_is_an_ordinary_product(
    quantized: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixture = placed(random_experts(4, 96, 64, *FORMATS[1], torch.bfloat16), device)
    x, gate = inputs(19, 96, torch.bfloat16, device), (torch.randn(4, 96) / 10).to(device, torch.bfloat16)
    bias = torch.zeros(4, device=device)
    chosen = routing.route_rows(x, gate, bias, bias, None, 2, SCALING, mixture, quantized=quantized)
    together = experts.mix_experts(x, chosen, mixture, LIMIT, quantized=quantized)
    monkeypatch.setattr(products, "MOST_STREAMED", 18)
    apart = experts.mix_experts(x, chosen, mixture, LIMIT, quantized=quantized)
    assert_close(apart, together, 2.5e-2 if quantized else 1e-2)
    assert_close(apart, reference.mix_experts(x, chosen, mixture, LIMIT, quantized=quantized), 2.5e-2)


def test_ties_go_to_the_lower_expert_and_picks_are_grouped(device: torch.device) -> None:
    x, gate = torch.ones(40, 32, device=device), torch.ones(6, 32, device=device)
    bias = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], device=device)
    mixture = placed(random_experts(6, 32, 32, None, None, torch.float32), device)
    ours = routing.route_rows(x, gate, bias, bias, None, 2, SCALING, mixture, quantized=False)
    assert torch.equal(ours.chosen, torch.tensor([[1, 2]], device=device).expand(40, 2))
    tiles = ours.tiles
    assert sorted(tiles.order.tolist()) == list(range(80))
    assert tiles.order[:40].sort().values.tolist() == list(range(0, 80, 2))
    kept = tiles.count > 0
    covered = [
        range(f, f + c) for f, c in zip(tiles.first[kept].tolist(), tiles.count[kept].tolist(), strict=True)
    ]
    assert sorted(place for part in covered for place in part) == list(range(80))
    assert tiles.expert[kept].tolist() == sorted(tiles.expert[kept].tolist())


def test_scores_in_float32_never_come_from_the_library(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sums depend on the number of rows."""
    asked = []
    monkeypatch.setattr(routing, "MOST_STREAMED", 4)
    monkeypatch.setattr(routing, "wide_linear", lambda x, gate: asked.append(x.dtype) or (x @ gate.T).float())
    for dtype in (torch.float32, torch.bfloat16):
        mixture = placed(random_experts(5, 32, 32, None, None, dtype), device)
        x, gate = inputs(9, 32, dtype, device), torch.randn(5, 32).to(device, dtype)
        bias = torch.zeros(5, device=device)
        routing.route_rows(x, gate, bias, bias, None, 3, SCALING, mixture, quantized=False)
    assert asked == [torch.bfloat16]


@pytest.mark.parametrize("rows", [1, 5, 21, 22, 70])
def test_the_tables_of_the_launch_equal_those_of_a_sort(
    rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to 64 picks, where an expert's fit one tile, by comparison; beyond, by counting. Twice: the counters
    are left as they were found."""
    monkeypatch.setattr(routing, "tile_height", lambda picks, experts, dtype: 32)
    mixture = placed(random_experts(5, 32, 32, None, None, torch.float32), device)
    x, gate = inputs(rows, 32, torch.float32, device), torch.randn(5, 32, device=device) / 5
    bias = torch.zeros(5, device=device)
    for _ in range(2):
        ours = routing.route_rows(x, gate, bias, bias, None, 3, SCALING, mixture, quantized=False)
        assert not launching.counters("routing", device, 0).any()
        other = routing.sort_picks(x, ours, mixture, quantized=False)
        kept = other.tiles.count > 0
        assert torch.equal(ours.tiles.count, other.tiles.count)
        experts_of = ours.chosen.flatten()
        assert torch.equal(experts_of[ours.tiles.order.long()], experts_of[other.tiles.order.long()])
        assert ours.tiles.order.sort().values.tolist() == list(range(3 * rows))
        for name in ("expert", "first"):
            assert torch.equal(getattr(ours.tiles, name)[kept], getattr(other.tiles, name)[kept])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_chooses_the_same_alone(dtype: torch.dtype, device: torch.device) -> None:
    """Experts and shares, bit for bit, with the gate's columns in parts."""
    mixture = placed(random_experts(70, 32, 32, None, None, dtype), device)
    x, gate = inputs(20, 1280, dtype, device), (torch.randn(70, 1280) / 36).to(device, dtype)
    biases, image = torch.randn(2, 70, device=device) / 9, torch.arange(20, device=device) % 3 == 0

    def run(part: slice) -> reference.Routing:
        return routing.route_rows(x[part], gate, *biases, image[part], 6, SCALING, mixture, quantized=False)

    whole = run(slice(None))
    for part in (slice(1), slice(17, 20), slice(7, 18)):
        some = run(part)
        assert torch.equal(some.chosen, whole.chosen[part])
        assert torch.equal(some.shares, whole.shares[part])


@pytest.mark.filterwarnings("ignore:All-NaN:RuntimeWarning")
def test_rows_do_not_depend_on_each_other(device: torch.device) -> None:
    mixture = placed(random_experts(4, 64, 32, *FORMATS[1], torch.bfloat16), device)
    x, gate = inputs(24, 64, torch.bfloat16, device), (torch.randn(4, 64) / 8).to(device, torch.bfloat16)
    bias = torch.zeros(4, device=device)

    def run(rows: Tensor) -> Tensor:
        chosen = routing.route_rows(rows, gate, bias, bias, None, 2, SCALING, mixture, quantized=True)
        return experts.mix_experts(rows, chosen, mixture, LIMIT, quantized=True)

    assert torch.equal(run(x)[5:6], run(x[5:6]))
    x[3] = torch.nan
    assert torch.equal(run(x)[5:6], run(x[5:6]))


@pytest.mark.parametrize("rows", [50, 90, 120])
def test_tall_tiles_share_an_expanded_weight(rows: int, device: torch.device) -> None:
    """Two experts get every row: 64 lanes, 64 and 32, 64 and 64."""
    mixture = placed(random_experts(2, 128, 128, *FORMATS[1], torch.bfloat16), device)
    x, gate = inputs(rows, 128, torch.bfloat16, device), torch.randn(2, 128).to(device, torch.bfloat16)
    bias = torch.zeros(2, device=device)
    ours = routing.route_rows(x, gate, bias, bias, None, 2, SCALING, mixture, quantized=False)
    assert ours.tiles.height == 128
    out = experts.mix_experts(x, ours, mixture, LIMIT, quantized=False)
    wide = reference.Routing(ours.chosen, ours.shares.double())
    expected = reference.mix_experts(x.double(), wide, in_float64(mixture), LIMIT, quantized=False)
    assert_close(out, expected, 1e-2)
