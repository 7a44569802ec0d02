"""Products with weights that stay quantized, against their twins."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from stepahead.devices.kernels.quantized import QuantizedWeight
from stepahead.devices.kernels.reference import products as reference
from stepahead.devices.kernels.triton import launching, products
from stepahead.engine.model.checkpoint.formats import quantize
from stepahead.engine.model.checkpoint.storage import StorageKind
from tests.kernels.comparing import assert_close


def stored(out: int, columns: int, device: torch.device) -> QuantizedWeight:
    values = torch.randn(out, columns) * torch.logspace(-2, 0, columns) * columns**-0.5
    return quantize(values, StorageKind.FP8_BLOCK).kept().to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("rows", "out", "columns"), [(1, 64, 96), (11, 96, 2048), (40, 64, 256), (0, 32, 32)]
)
def test_a_product_matches_its_twin(
    rows: int, out: int, columns: int, dtype: torch.dtype, device: torch.device
) -> None:
    weight, x = stored(out, columns, device), torch.randn(rows, columns).to(device, dtype)
    result = products.linear(x, weight)
    assert result.dtype == dtype
    expected = x.double() @ weight.dequantize(torch.float64).T
    assert_close(result, expected)
    assert_close(reference.linear(x, weight), expected)


def test_wide_matrices_are_parted_and_the_parts_always_added_in_order(device: torch.device) -> None:
    assert products.parts(96, 2048, 32, 1) == 4
    assert products.parts(32768, 1280, 64, 1) == 1
    weight, x = stored(64, 2048, device), torch.randn(5, 2048, device=device)
    first = products.linear(x, weight)
    assert all(torch.equal(products.linear(x, weight), first) for _ in range(3))
    assert torch.equal(products.linear(x[2:3], weight), first[2:3])


@pytest.mark.parametrize("rows", [0, 1, 7, 9, 65])
def test_plain_weights_with_many_columns(
    rows: int, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streamed up to 64 rows, a row's bits the same whatever is with it; the library's beyond."""
    asked = []
    library = reference.linear
    monkeypatch.setattr(reference, "linear", lambda x, weight: asked.append(x.shape[0]) or library(x, weight))
    x = torch.randn(rows, 2048).to(device, torch.bfloat16)
    weight = (torch.randn(48, 2048) / 45).to(device, torch.bfloat16)
    expected = x.double() @ weight.double().T
    result = products.linear(x, weight)
    assert result.dtype == torch.bfloat16
    assert_close(result, expected)
    wide = products.wide_linear(x, weight)
    assert wide.dtype == torch.float32
    assert_close(wide, expected)
    assert asked == ([65] if rows == 65 else [])
    if 0 < rows <= 8:  # beyond, the interpreter multiplies tiles of another height in another order
        assert torch.equal(products.wide_linear(x[-1:], weight), wide[-1:])
        assert not launching.counters("products", device, 0).any()


@pytest.mark.parametrize("rows", [3, 20])
def test_groups_have_matrices_of_their_own(rows: int, device: torch.device) -> None:
    whole = stored(3 * 32, 64, device)
    weight, x = whole.view(3, 32, 64), torch.randn(rows, 3 * 64, device=device)
    result = products.grouped_linear(x, weight)
    matrices = weight.dequantize(torch.float64)
    pieces = [x[:, 64 * g : 64 * g + 64].double() @ matrices[g].T for g in range(3)]
    assert_close(result, torch.cat(pieces, dim=1))
    assert_close(reference.grouped_linear(x, weight), torch.cat(pieces, dim=1))


def test_many_rows_expand_the_weight_once(device: torch.device) -> None:
    weight = stored(64, 96, device)
    x = torch.randn(products.MOST_STREAMED + 1, 96).to(device, torch.bfloat16)
    assert torch.equal(products.expand(weight, torch.bfloat16), weight.dequantize(torch.bfloat16))
    assert_close(products.linear(x, weight), x.double() @ weight.dequantize(torch.float64).T)


def test_rows_of_a_slice_are_read_in_place(device: torch.device) -> None:
    weight, x = stored(96, 64, device), torch.randn(4, 128, device=device)[:, :64]
    expected = x.double() @ weight.dequantize(torch.float64)[32:].T
    assert_close(products.linear(x, weight[32:]), expected)


def test_every_code_is_expanded_exactly(device: torch.device) -> None:
    """Also subnormal ones, minus zero and scales at both ends of what is allowed; but no NaN."""
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32).repeat(4, 4)
    codes[(codes & 0x7F) == 0x7F] = 0
    scales = torch.tensor([[10, 60, 127, 134]], dtype=torch.uint8)
    payload = codes.view(torch.float8_e4m3fn)
    weight = quantize(torch.randn(32, 128), StorageKind.FP8_BLOCK).kept()
    weight = QuantizedWeight(payload, scales, weight.format).to(device)
    assert torch.equal(products.expand(weight, torch.float32), weight.dequantize(torch.bfloat16).float())
