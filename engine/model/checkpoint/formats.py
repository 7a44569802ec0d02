"""Whole weights in their stored form: quantize, keep quantized, dequantize.

A 510 GB checkpoint only fits because it stays quantized, so a weight can be handed around as the bytes of the
file (`QuantizedTensor`) and be expanded where it is used. Every element is a short code times a power of two;
bf16 holds that product exactly, so expanding loses nothing.

On the CPU codes are expanded through tables: one lookup turns two fp8 codes (or a byte of two fp4 codes) into
two bf16 numbers. The dtype conversion of torch gives the same bits eleven times slower.

Source: model_spec 4.6.
"""

from __future__ import annotations

from functools import cache

import msgspec
import torch
from torch import Tensor

from stepahead.devices.kernels.quantized import QuantizedWeight, WeightFormat
from stepahead.devices.kernels.reference.quantization import (
    E2M1_MAX,
    E4M3_MAX,
    UE8M0_BIAS,
    decode_e2m1,
    decode_ue8m0,
    encode_e2m1,
    encode_e4m3,
    encode_ue8m0,
    pack_nibbles,
    ue8m0_scale,
    unpack_nibbles,
)

from .storage import GROUP, Shape, StorageKind, scale_shape

# Below this magnitude a block of weights is as good as zero; its scale must stay a normal number.
_SMALLEST_AMAX = 2.0**-96


class QuantizedTensor(msgspec.Struct, frozen=True, eq=False):
    """A weight as it lies in a file.

    `payload`: float8_e4m3fn [rows, columns], or for MXFP4 uint8 [rows, columns / 2] with the even element in
    the low nibble. `scales`: uint8 exponent bytes shaped by `layout.scale_shape`. `shape`: of the weight.
    """

    payload: Tensor
    scales: Tensor
    kind: StorageKind
    shape: Shape

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight [rows, columns] in bf16, float32 or float64; all three are exact."""
        rows, columns = self.shape
        scales = self.scales
        if self.kind is StorageKind.FP8_BLOCK:
            scales = scales.repeat_interleave(GROUP, dim=0)[:rows]
        return _expand(self.payload, scales, columns, dtype)

    def kept(self) -> QuantizedWeight:
        """The same bytes as an operation takes them. `ValueError` where no kernel could expand them exactly.

        FP8 rows hold tables that are looked up, not multiplied by; they have no such form.
        """
        if self.kind is StorageKind.FP8_ROWS:
            raise ValueError("a table with a scale per row is looked up, not multiplied by")
        fp4 = self.kind is StorageKind.MXFP4
        weight_format = WeightFormat.MXFP4 if fp4 else WeightFormat.FP8_BLOCK
        largest = int(self.scales.max())
        if largest > weight_format.largest_scale:
            raise ValueError(
                f"a scale of 2 ** {largest - UE8M0_BIAS} is above the largest that "
                f"{weight_format.name} weights may keep, 2 ** {weight_format.largest_scale - UE8M0_BIAS}"
            )
        return QuantizedWeight(self.payload, self.scales, weight_format)

    def dequantize_rows(self, row_ids: Tensor, dtype: torch.dtype) -> Tensor:
        """Some rows of the weight, [n, columns], without expanding the others. `row_ids`: int64 [n]."""
        payload = self.payload.view(torch.uint8)[row_ids].view(self.payload.dtype)
        scale_rows = row_ids // GROUP if self.kind is StorageKind.FP8_BLOCK else row_ids
        return _expand(payload, self.scales[scale_rows], self.shape[1], dtype)


def quantize(weight: Tensor, kind: StorageKind) -> QuantizedTensor:
    """A weight [rows, columns] of any float dtype in one of the quantized kinds.

    Quantizing a dequantized weight gives the same values back. MXFP4 needs an even number of columns.
    """
    rows, columns = weight.shape
    if kind is StorageKind.MXFP4 and columns % 2:
        raise ValueError(f"MXFP4 packs pairs; {columns} columns are odd")
    largest = E2M1_MAX if kind is StorageKind.MXFP4 else E4M3_MAX
    height = GROUP if kind is StorageKind.FP8_BLOCK else 1
    blocks = _blocks(weight.to(torch.float32), height)
    amax = blocks.abs().amax(dim=(1, 3), keepdim=True).clamp(min=_SMALLEST_AMAX)
    scale = ue8m0_scale(amax, largest)
    scaled = (blocks / scale).flatten(2).flatten(0, 1)[:rows, :columns]
    payload = pack_nibbles(encode_e2m1(scaled)) if kind is StorageKind.MXFP4 else encode_e4m3(scaled)
    scales = encode_ue8m0(scale).reshape(scale_shape((rows, columns), kind))
    return QuantizedTensor(payload.contiguous(), scales, kind, (rows, columns))


def fake_quantize(weight: Tensor, kind: StorageKind) -> Tensor:
    """The weight as it will be read back, in its own dtype; unquantized kinds are rounded to their float."""
    if kind.is_quantized:
        return quantize(weight, kind).dequantize(weight.dtype)
    return weight.to(torch.float32 if kind is StorageKind.FP32 else torch.bfloat16).to(weight.dtype)


def _blocks(weight: Tensor, height: int) -> Tensor:
    """`weight` [rows, columns] padded with zeros, as [row blocks, height, column blocks, 32]."""
    rows, columns = weight.shape
    padding = (0, -columns % GROUP, 0, -rows % height)
    padded = torch.nn.functional.pad(weight, padding) if any(padding) else weight
    return padded.reshape(padded.shape[0] // height, height, padded.shape[1] // GROUP, GROUP)


def _expand(payload: Tensor, row_scales: Tensor, columns: int, dtype: torch.dtype) -> Tensor:
    """Codes times the scales of their row and column group. `row_scales`: uint8 [rows, groups]."""
    values = _decode(payload).to(dtype)
    scales = decode_ue8m0(row_scales).to(dtype)
    if columns % GROUP:
        return values.mul_(scales.repeat_interleave(GROUP, dim=1)[:, :columns])
    values.view(*scales.shape, GROUP).mul_(scales.unsqueeze(-1))
    return values


def _decode(payload: Tensor) -> Tensor:
    """Codes without their scales, in bf16 [rows, columns], freshly allocated."""
    is_fp8 = payload.dtype is torch.float8_e4m3fn
    if payload.device.type != "cpu":
        decoded = payload.to(torch.bfloat16) if is_fp8 else decode_e2m1(unpack_nibbles(payload))
        return decoded.to(torch.bfloat16)
    if not is_fp8:
        return _lookup(_fp4_pairs(), payload.reshape(-1)).view(payload.shape[0], -1)
    codes = payload.contiguous().view(torch.uint8).reshape(-1)
    if codes.numel() % 2 or codes.data_ptr() % 2:
        # A mapped file may put a tensor at an odd address, which cannot be viewed as 16-bit pairs.
        padded = codes.new_zeros(codes.numel() + codes.numel() % 2)
        padded[: codes.numel()] = codes
        return _lookup(_fp8_pairs(), padded.view(torch.uint16))[: codes.numel()].view(payload.shape)
    return _lookup(_fp8_pairs(), codes.view(torch.uint16)).view(payload.shape)


def _lookup(pairs: Tensor, codes: Tensor) -> Tensor:
    """Two bf16 numbers per code, flat."""
    return torch.index_select(pairs, 0, codes.to(torch.int32)).view(torch.bfloat16)


@cache
def _fp8_pairs() -> Tensor:
    """Two bf16 numbers in an int32 for each of the 65,536 pairs of fp8 codes."""
    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    return _paired(codes.to(torch.bfloat16))


@cache
def _fp4_pairs() -> Tensor:
    """Two bf16 numbers in an int32 for each byte of two fp4 codes."""
    return _paired(decode_e2m1(torch.arange(16, dtype=torch.uint8)).to(torch.bfloat16))


def _paired(values: Tensor) -> Tensor:
    """Entry `first + n * second` holds values[first] in front of values[second], as memory has them."""
    count = values.numel()
    first, second = values.expand(count, count), values.unsqueeze(1).expand(count, count)
    return torch.stack((first, second), dim=-1).reshape(-1).view(torch.int32)
