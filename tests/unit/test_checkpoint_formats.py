"""Weights in their stored form: exact, idempotent, and laid out as published."""

from __future__ import annotations

import pytest
import torch

from stepahead.devices.kernels.reference.quantization import E2M1_VALUES, decode_ue8m0
from stepahead.engine.model.checkpoint.formats import QuantizedTensor, fake_quantize, quantize
from stepahead.engine.model.checkpoint.storage import StorageKind, scale_shape

QUANTIZED = [kind for kind in StorageKind if kind.is_quantized]
DTYPES = [torch.bfloat16, torch.float32, torch.float64]


def weight(rows: int, columns: int, seed: int = 3) -> torch.Tensor:
    values = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    return values * torch.logspace(-3, 1, columns)


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("shape", [(64, 96), (40, 64), (33, 46), (1, 32)])
def test_invariant_33_dequantize_of_quantize_is_idempotent(kind: StorageKind, shape: tuple[int, int]) -> None:
    once = quantize(weight(*shape), kind)
    assert once.scales.shape == scale_shape(shape, kind)
    values = once.dequantize(torch.float32)
    assert values.shape == shape
    assert torch.equal(quantize(values, kind).dequantize(torch.float32), values)


@pytest.mark.parametrize("kind", QUANTIZED)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantize_matches_the_definition(kind: StorageKind, dtype: torch.dtype) -> None:
    """Element by element: code value times the scale of its row (or row block) and column group."""
    stored = quantize(weight(35, 64), kind)
    result = stored.dequantize(dtype)
    assert result.dtype is dtype
    for row, column in [(0, 0), (0, 1), (31, 31), (32, 32), (34, 63), (17, 40)]:
        if kind is StorageKind.MXFP4:
            byte = int(stored.payload[row, column // 2])
            code = byte & 15 if column % 2 == 0 else byte >> 4
            value = E2M1_VALUES[code & 7] * (-1 if code & 8 else 1)
        else:
            value = float(stored.payload[row, column].float())
        scale_row = row // 32 if kind is StorageKind.FP8_BLOCK else row
        scale = 2.0 ** (int(stored.scales[scale_row, column // 32]) - 127)
        assert result[row, column].item() == value * scale


def test_bf16_loses_nothing() -> None:
    for kind in QUANTIZED:
        stored = quantize(weight(64, 64), kind)
        assert torch.equal(stored.dequantize(torch.bfloat16).double(), stored.dequantize(torch.float64))


def test_every_fp8_code_decodes_as_torch_does() -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).reshape(8, 32)
    ones = torch.full((1, 1), 127, dtype=torch.uint8)
    decoded = QuantizedTensor(codes, ones, StorageKind.FP8_BLOCK, (8, 32)).dequantize(torch.float32)
    assert torch.equal(decoded.nan_to_num(nan=1000), codes.float().nan_to_num(nan=1000))


def test_a_tensor_at_an_odd_address_decodes() -> None:
    """A mapped file gives no alignment beyond the byte."""
    stored = quantize(weight(32, 32), StorageKind.FP8_BLOCK)
    buffer = torch.empty(1 + stored.payload.numel(), dtype=torch.uint8)
    buffer[1:] = stored.payload.view(torch.uint8).flatten()
    payload = buffer[1:].view(torch.float8_e4m3fn).view(32, 32)
    odd = QuantizedTensor(payload, stored.scales, stored.kind, stored.shape)
    assert odd.payload.data_ptr() % 2 == 1
    assert torch.equal(odd.dequantize(torch.bfloat16), stored.dequantize(torch.bfloat16))


def test_an_odd_number_of_codes_decodes() -> None:
    stored = quantize(weight(3, 33), StorageKind.FP8_ROWS)
    scales = decode_ue8m0(stored.scales).repeat_interleave(32, dim=1)[:, :33]
    assert torch.equal(stored.dequantize(torch.float32), stored.payload.float() * scales)


def test_invariant_33_mxfp4_puts_the_even_element_in_the_low_nibble() -> None:
    values = torch.zeros(1, 32)
    values[0, 0], values[0, 1], values[0, 3] = 1.0, -6.0, 0.5
    stored = quantize(values, StorageKind.MXFP4)
    assert stored.scales.tolist() == [[127]]
    assert stored.payload[0, :2].tolist() == [0xF2, 0x10]


def test_one_block_shares_one_scale_and_rows_do_not() -> None:
    values = torch.ones(64, 32)
    values[0, 0] = 448 * 4
    assert quantize(values, StorageKind.FP8_BLOCK).scales.tolist() == [[129], [119]]
    per_row = quantize(values, StorageKind.FP8_ROWS).scales
    assert per_row[0].item() == 129
    assert per_row[1:].unique().tolist() == [119]


@pytest.mark.parametrize("kind", QUANTIZED)
def test_zero_and_tiny_weights_survive(kind: StorageKind) -> None:
    values = torch.zeros(32, 64)
    values[0, 0] = 1e-20
    result = fake_quantize(values, kind)
    assert result[0, 0].item() == pytest.approx(1e-20, rel=0.07)
    assert result.count_nonzero() == 1


@pytest.mark.parametrize("kind", QUANTIZED)
def test_chosen_rows_equal_the_whole(kind: StorageKind) -> None:
    stored = quantize(weight(70, 64), kind)
    rows = torch.tensor([69, 0, 33, 33])
    assert torch.equal(stored.dequantize_rows(rows, torch.float32), stored.dequantize(torch.float32)[rows])


def test_fake_quantize_rounds_plain_kinds_to_their_float() -> None:
    values = torch.tensor([1 + 2.0**-12])
    assert fake_quantize(values, StorageKind.BF16).item() == 1
    assert fake_quantize(values, StorageKind.FP32).item() == values.item()


def test_mxfp4_refuses_an_odd_width() -> None:
    with pytest.raises(ValueError, match="33 columns are odd"):
        quantize(torch.zeros(2, 33), StorageKind.MXFP4)
