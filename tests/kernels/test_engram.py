"""The Engram memory: what it collects, what it finds, what it lets in; and the norm that stands beside it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepahead.devices.kernels.quantized_rows import QuantizedRows
from stepahead.devices.kernels.reference import engram as reference
from stepahead.devices.kernels.reference import norm as reference_norm
from stepahead.devices.kernels.reference.quantization import dequantize_fp8

from .comparing import assert_close, assert_rows_independent, widened

pytest.importorskip("triton")

from stepahead.devices.kernels.triton import engram as kernels
from stepahead.devices.kernels.triton import norm as norm_kernels


def ngram_inputs(device: torch.device, history: int) -> dict[str, Tensor]:
    """Three sequences of 1, 70 and 4 rows: one with images, one whose history begins before its start."""
    generator = torch.Generator().manual_seed(history)
    lengths = torch.tensor([1, 70, 4])
    rows = int(lengths.sum())
    past = torch.randint(0, 50, (3, history), generator=generator)
    past[2, : history // 2] = reference.NOT_TEXT
    tensors = {
        "token_ids": torch.randint(0, 50, (rows,), generator=generator),
        "sequence_rows": torch.arange(3).repeat_interleave(lengths),
        "row_start": lengths.cumsum(0) - lengths,
        "history": past,
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()}


@pytest.mark.parametrize("history", [1, 3, 5])
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize("mapped", [False, True])
def test_ngrams(history: int, images: bool, mapped: bool, device: torch.device) -> None:
    inputs = ngram_inputs(device, history)
    rows = inputs["token_ids"].shape[0]
    mask = (torch.arange(rows, device=device) % 7 == 3) if images else None
    token_map = (torch.arange(50, device=device) * 7 % 31) if mapped else None
    pad = torch.tensor(2, device=device)
    arguments = (*inputs.values(), mask, token_map, pad, 4)
    assert torch.equal(kernels.collect_ngrams(*arguments), reference.collect_ngrams(*arguments))


def hashing(heads: int) -> list[Tensor]:
    """Multipliers, primes and offsets."""
    primes = torch.tensor([[101, 103, 107][:heads], [109, 113, 127][:heads], [131, 137, 139][:heads]])
    offsets = (primes.flatten().cumsum(0) - primes.flatten()).view_as(primes)
    multipliers = torch.tensor([76632096046245, 4839876093313, 35959672319349, 73987337458391])
    return [multipliers, primes, offsets]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "heads", "dim"), [(1, 2, 24), (5, 3, 32), (0, 2, 8)])
def test_recall(rows: int, heads: int, dim: int, dtype: torch.dtype, device: torch.device) -> None:
    tensors = hashing(heads)
    table = torch.randn(int(tensors[1].sum()), dim).to(dtype)
    ngrams = torch.randint(0, 99092, (rows, 4))
    arguments = [x.to(device) for x in (ngrams, *tensors, table)]
    assert torch.equal(kernels.recall(*arguments, dtype), reference.recall(*arguments, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_recall_from_a_quantized_table(dtype: torch.dtype, device: torch.device) -> None:
    """Every code but the two NaNs, every scale under which none overflows: what comes back is exact."""
    tensors = [x.to(device) for x in hashing(3)]
    rows = int(tensors[1].sum())
    codes = (torch.arange(rows * 64, device=device) * 7 % 256).to(torch.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    scales = (torch.arange(rows * 2, device=device) * 5 % 240).to(torch.uint8).view(rows, 2)
    table = QuantizedRows(codes.view(torch.float8_e4m3fn).view(rows, 64), scales)
    ngrams = torch.randint(0, 99092, (4, 4), device=device)
    out = kernels.recall(ngrams, *tensors, table, dtype)
    assert torch.equal(out, reference.recall(ngrams, *tensors, table, dtype))
    numbers = reference.hash_rows(ngrams, *tensors)
    expanded = dequantize_fp8(table.payload, scales, dtype)
    assert torch.equal(out, torch.nn.functional.embedding(numbers, expanded).flatten(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("images", [False, True])
@pytest.mark.parametrize(("rows", "copies", "dim"), [(3, 4, 40), (2, 3, 257), (0, 4, 8)])
def test_memory(
    rows: int, copies: int, dim: int, images: bool, dtype: torch.dtype, device: torch.device
) -> None:
    streams = torch.randn(rows, copies, dim, device=device).to(dtype)
    memory = torch.randn(rows, copies + 1, dim, device=device).to(dtype)
    weight = torch.randn(copies, dim, device=device)
    text = torch.arange(rows, device=device) % 2 == 0 if images else None
    out = kernels.apply_memory(streams, memory, weight, text, 1e-20)
    assert_close(out, reference.apply_memory(*widened(streams, memory, weight), text, 1e-20))
    if images:
        assert torch.equal(out[1::2], streams[1::2])


def test_the_gate_of_a_zero_product_follows_its_sign_bit(device: torch.device) -> None:
    streams = torch.tensor([[[1.0, 1.0]], [[1.0, 1.0]]], device=device)
    memory = torch.zeros(2, 2, 2, device=device)
    memory[:, 1] = 1
    weight = torch.full((1, 2), -1.0, device=device)  # -0 in every term
    for sign in (weight, -weight):
        out = kernels.apply_memory(streams, memory, sign, None, 1e-20)
        assert_close(out, reference.apply_memory(streams, memory, sign, None, 1e-20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 40), (2, 5, 16), (1, 1030), (9, 256), (0, 16)])
def test_norm(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
    x = (torch.randn(shape, device=device) * 3).to(dtype)
    weight = torch.randn(shape[-1], device=device)
    out = norm_kernels.rms_norm(x, weight, 1e-20)
    assert out.dtype == dtype
    assert_close(out, reference_norm.rms_norm(x.double(), weight.double(), 1e-20))
    if x.shape[0]:
        assert_rows_independent(
            lambda rows: norm_kernels.rms_norm(rows[0], weight, 1e-20), [x], row=-1 % len(x)
        )


def test_norm_of_columns_of_a_wider_matrix(device: torch.device) -> None:
    wide = torch.randn(5, 48, device=device)
    weight = torch.randn(16, device=device)
    out = norm_kernels.rms_norm(wide[:, 24:40], weight, 1e-20)
    assert out.is_contiguous()
    assert_close(out, reference_norm.rms_norm(wide[:, 24:40].double(), weight.double(), 1e-20))
    assert torch.equal(
        norm_kernels.rms_norm(torch.zeros(2, 16, device=device), weight, 1e-20),
        torch.zeros(2, 16, device=device),
    )
