"""Small float32 products of the Triton set against float64."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from stepahead.devices.kernels.triton import products

from .comparing import assert_close


@pytest.mark.parametrize(
    ("rows", "width", "out"), [(1, 64, 5), (17, 256, 192), (130, 72, 70), (0, 64, 32), (3, 16, 33)]
)
def test_linear(rows: int, width: int, out: int, device: torch.device) -> None:
    torch.manual_seed(rows)
    whole = torch.randn(rows, width + 8, device=device)
    weight = torch.randn(out, width, device=device)
    for x in (whole[:, 8:], whole[:, :width].contiguous()):
        result = products.linear(x, weight)
        assert_close(result, x.double() @ weight.double().T)
        assert_close(products.wide_linear(x, weight), x.double() @ weight.double().T)


def test_groups(device: torch.device) -> None:
    torch.manual_seed(5)
    x, weight = torch.randn(9, 2 * 96, device=device), torch.randn(2, 40, 96, device=device)
    pieces = [x[:, 96 * g : 96 * g + 96].double() @ weight[g].double().T for g in range(2)]
    assert_close(products.grouped_linear(x, weight), torch.cat(pieces, dim=1))


def test_other_products_stay_with_the_library(device: torch.device) -> None:
    weight, x = torch.randn(8, 32, device=device), torch.randn(2, 32, device=device)
    for dtype in (torch.float64, torch.bfloat16):
        result = products.linear(x.to(dtype), weight.to(dtype))
        assert torch.equal(result, torch.nn.functional.linear(x.to(dtype), weight.to(dtype)))
