"""The low-precision number formats of V4.1 in plain torch: element codes, power-of-two scales, round trips.

Checkpoints store weights in these formats and the parity level of the model stores activations and caches in
them, so both use the same functions and cannot drift apart. Scales are derived from the exponent bits of the
largest magnitude: a float `log2` is off by one at exact powers of two on some devices.

Invariants: rounding is to nearest, ties to even; values beyond the largest element saturate; nothing here
reads a value back to the host, so every function may run inside a captured graph.

Source: model_spec 4.6.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Format = Literal["plain", "fp8", "fp4_ue8m0", "fp4_e4m3"]
"""How a cache stores a vector; `plain` keeps the type of the activations."""

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)

UE8M0_BIAS = 127
UE8M0_NAN = 255

# Below these magnitudes the scale of a group stops shrinking: the published rules.
SMALLEST_FP8_AMAX = 1e-4
SMALLEST_FP4_AMAX = 6 * 2.0**-126
SMALLEST_E4M3_SCALE = 2.0**-9

_FP32_MANTISSA_BITS = 23
_FP32_MANTISSA_MASK = (1 << _FP32_MANTISSA_BITS) - 1
_FP32_EXPONENT_MASK = 0xFF << _FP32_MANTISSA_BITS
_FP32_SUBNORMAL_HALF = 1 << (_FP32_MANTISSA_BITS - 1)  # the bits of 2**-127
_FP32_NAN_BITS = 0x7FC00000


def decode_ue8m0(scale_bytes: Tensor) -> Tensor:
    """Powers of two from their exponent bytes: `2 ** (byte - 127)`, NaN for 255.

    `scale_bytes`: uint8 or float8_e8m0fnu, any shape. Returns float32 of that shape.
    """
    exponent = scale_bytes.view(torch.uint8).to(torch.int32)
    bits = exponent << _FP32_MANTISSA_BITS
    bits = torch.where(exponent == 0, _FP32_SUBNORMAL_HALF, bits)
    bits = torch.where(exponent == UE8M0_NAN, _FP32_NAN_BITS, bits)
    return bits.view(torch.float32)


def ue8m0_scale(amax: Tensor, largest_element: float) -> Tensor:
    """The smallest power-of-two scale under which `amax` stays within `largest_element`.

    This is `2 ** ceil(log2(amax / largest_element))` on exponent bits: the exponents are subtracted, and a
    carry out of the mantissa adds one exactly when the mantissa of `amax` exceeds that of `largest_element`.
    `amax`: positive normal float32, whose scale must be normal too (clamp it first). Returns float32.
    """
    mantissa, exponent = math.frexp(largest_element)
    largest_mantissa = int((2 * mantissa - 1) * (1 << _FP32_MANTISSA_BITS))
    carry = _FP32_MANTISSA_MASK - largest_mantissa
    bits = (amax.view(torch.int32) + carry) & _FP32_EXPONENT_MASK
    return (bits - ((exponent - 1) << _FP32_MANTISSA_BITS)).view(torch.float32)


def encode_ue8m0(scale: Tensor) -> Tensor:
    """Exponent bytes of normal powers of two. `scale`: float32, any shape. Returns uint8 of that shape."""
    return (scale.view(torch.int32) >> _FP32_MANTISSA_BITS).to(torch.uint8)


def encode_e4m3(values: Tensor) -> Tensor:
    """Nearest e4m3 code of every float32 value, saturating at 448. Returns float8_e4m3fn; NaN stays NaN."""
    return values.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)


def round_to_e2m1(values: Tensor) -> Tensor:
    """Nearest e2m1 value of every float32 value, saturating at 6. Returns float32; zeros keep their sign."""
    magnitude = values.abs()
    # One mantissa bit: steps of 1/2 below 2, of 1 below 4, of 2 above. torch.round takes ties to even, and an
    # even multiple of the step is an even code.
    step = torch.where(magnitude < 2, 0.5, torch.where(magnitude < 4, 1.0, 2.0))
    return ((values / step).round() * step).clamp(-E2M1_MAX, E2M1_MAX)


def encode_e2m1(values: Tensor) -> Tensor:
    """Nearest e2m1 code of every float32 value: sign bit 3, index into `E2M1_VALUES`. Returns uint8."""
    rounded = round_to_e2m1(values)
    # Doubled magnitudes are the integers 0 1 2 3 4 6 8 12; their codes are 0..7.
    doubled = (rounded.abs() * 2).to(torch.uint8)
    code = doubled - (doubled > 4).to(torch.uint8) - (doubled > 6).to(torch.uint8)
    code = torch.where(doubled > 8, 7, code)
    return code | (torch.signbit(rounded).to(torch.uint8) << 3)


def decode_e2m1(codes: Tensor) -> Tensor:
    """Values of e2m1 codes 0..15 (8 is minus zero). `codes`: uint8. Returns float32 of the same shape."""
    magnitude_code = (codes & 7).to(torch.int32)
    # Code m1 with exponent e > 0 is (2 + m) * 2 ** (e - 2); with e == 0 it is m / 2.
    exponent, mantissa = magnitude_code >> 1, magnitude_code & 1
    normal = ((exponent - 1 + UE8M0_BIAS) << _FP32_MANTISSA_BITS) | (mantissa << (_FP32_MANTISSA_BITS - 1))
    magnitude = torch.where(exponent > 0, normal.view(torch.float32), mantissa * 0.5)
    return torch.where(codes >= 8, -magnitude, magnitude)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Two 4-bit codes per byte along the last dimension, the even element in the low nibble.

    `codes`: uint8 [..., n] with n even. Returns uint8 [..., n / 2].
    """
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: Tensor) -> Tensor:
    """Inverse of `pack_nibbles`. `packed`: uint8 [..., n / 2]. Returns uint8 [..., n]."""
    return torch.stack((packed & 0xF, packed >> 4), dim=-1).flatten(-2)


def _groups(x: Tensor, group: int) -> Tensor:
    """`x` [..., n] in float32 as [..., n / group, group]."""
    if x.shape[-1] % group:
        raise ValueError(f"last dimension {x.shape[-1]} is not a multiple of the quantization group {group}")
    return x.to(torch.float32).reshape(*x.shape[:-1], x.shape[-1] // group, group)


def _fp8_scale(grouped: Tensor) -> Tensor:
    """One power-of-two scale per group for e4m3 elements, float32 [..., 1]."""
    return ue8m0_scale(grouped.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_FP8_AMAX), E4M3_MAX)


def _fp4_scale(grouped: Tensor) -> Tensor:
    """One power-of-two scale per group for e2m1 elements, float32 [..., 1]."""
    return ue8m0_scale(grouped.abs().amax(-1, keepdim=True).clamp(min=SMALLEST_FP4_AMAX), E2M1_MAX)


def quantize_fp8(x: Tensor, group: int = 32) -> tuple[Tensor, Tensor]:
    """FP8 with a power-of-two scale per group of the last dimension: GEMM inputs and window keys.

    `x`: bf16 or float32 [..., n]. Returns (float8_e4m3fn [..., n], uint8 ue8m0 scales [..., n / group]).
    """
    grouped = _groups(x, group)
    scale = _fp8_scale(grouped)
    return encode_e4m3(grouped / scale).flatten(-2), encode_ue8m0(scale).squeeze(-1)


def dequantize_fp8(payload: Tensor, scale_bytes: Tensor, dtype: torch.dtype) -> Tensor:
    """Inverse of `quantize_fp8`; the group size is the ratio of the last dimensions."""
    group = payload.shape[-1] // scale_bytes.shape[-1]
    grouped = _groups(payload, group)
    return (grouped * decode_ue8m0(scale_bytes).unsqueeze(-1)).flatten(-2).to(dtype)


def quantize_fp4_ue8m0(x: Tensor, group: int = 32) -> tuple[Tensor, Tensor]:
    """FP4 with a power-of-two scale per group: indexer keys and queries.

    `x`: bf16 or float32 [..., n].
    Returns (uint8 nibble pairs [..., n / 2], uint8 ue8m0 scales [..., n / group]).
    """
    grouped = _groups(x, group)
    scale = _fp4_scale(grouped)
    return pack_nibbles(encode_e2m1(grouped / scale).flatten(-2)), encode_ue8m0(scale).squeeze(-1)


def dequantize_fp4_ue8m0(packed: Tensor, scale_bytes: Tensor, dtype: torch.dtype) -> Tensor:
    """Inverse of `quantize_fp4_ue8m0`."""
    values = decode_e2m1(unpack_nibbles(packed))
    grouped = _groups(values, values.shape[-1] // scale_bytes.shape[-1])
    return (grouped * decode_ue8m0(scale_bytes).unsqueeze(-1)).flatten(-2).to(dtype)


def _e4m3_scale(grouped: Tensor) -> Tensor:
    """One e4m3 scale per group, `amax / 6` rounded, as float8_e4m3fn [..., 1]."""
    amax = grouped.abs().amax(-1, keepdim=True)
    return encode_e4m3((amax / E2M1_MAX).clamp(SMALLEST_E4M3_SCALE, E4M3_MAX))


def quantize_fp4_e4m3(x: Tensor, group: int = 16) -> tuple[Tensor, Tensor]:
    """FP4 with an e4m3 scale per group: compressed keys.

    Quantizing a dequantized entry again may change it (the scale is no power of two), so stored entries are
    copied as bytes. `x`: bf16 or float32 [..., n].
    Returns (uint8 nibble pairs [..., n / 2], float8_e4m3fn scales [..., n / group]).
    """
    grouped = _groups(x, group)
    scale = _e4m3_scale(grouped)
    codes = encode_e2m1(grouped / scale.to(torch.float32))
    return pack_nibbles(codes.flatten(-2)), scale.squeeze(-1)


def dequantize_fp4_e4m3(packed: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Inverse of `quantize_fp4_e4m3`."""
    values = decode_e2m1(unpack_nibbles(packed))
    grouped = _groups(values, values.shape[-1] // scale.shape[-1])
    return (grouped * scale.to(torch.float32).unsqueeze(-1)).flatten(-2).to(dtype)


def fp8_round_trip(x: Tensor, group: int = 32) -> Tensor:
    """`x` as it comes back from `quantize_fp8`, in the dtype of `x`."""
    grouped = _groups(x, group)
    scale = _fp8_scale(grouped)
    return (encode_e4m3(grouped / scale).to(torch.float32) * scale).flatten(-2).to(x.dtype)


def fp4_round_trip_ue8m0(x: Tensor, group: int = 32) -> Tensor:
    """`x` as it comes back from `quantize_fp4_ue8m0`, in the dtype of `x`."""
    grouped = _groups(x, group)
    scale = _fp4_scale(grouped)
    return (round_to_e2m1(grouped / scale) * scale).flatten(-2).to(x.dtype)


def fp4_round_trip_e4m3(x: Tensor, group: int = 16) -> Tensor:
    """`x` as it comes back from `quantize_fp4_e4m3`, in the dtype of `x`."""
    grouped = _groups(x, group)
    scale = _e4m3_scale(grouped).to(torch.float32)
    return (round_to_e2m1(grouped / scale) * scale).flatten(-2).to(x.dtype)


def round_trip(x: Tensor, form: Format) -> Tensor:
    """`x` as it comes back from a cache of the given format, in the dtype of `x`."""
    if form == "plain":
        return x
    trips = {"fp8": fp8_round_trip, "fp4_ue8m0": fp4_round_trip_ue8m0, "fp4_e4m3": fp4_round_trip_e4m3}
    return trips[form](x)
