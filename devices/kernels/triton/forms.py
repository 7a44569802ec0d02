"""Cache formats and rotations of single vectors in registers, with the bits of `reference.quantization`.

A vector is held as two: its even and its odd elements. Rotary pairs are interleaved (model_spec 2.3), so a
rotation then needs no exchange between threads; groups of 16 or 32 elements are groups of 8 or 16 pairs.
Values are float32 that hold numbers of the narrow type; every function returns float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..reference.quantization import Format
from .codes import fp8_scale, round_to_e4m3

PLAIN = tl.constexpr(0)
FP8 = tl.constexpr(1)
FP4_UE8M0 = tl.constexpr(2)
FP4_E4M3 = tl.constexpr(3)

FORM: dict[Format, int] = {"plain": 0, "fp8": 1, "fp4_ue8m0": 2, "fp4_e4m3": 3}
"""What a kernel is told of a format."""


@triton.jit
def _with_sign(magnitude, signed):
    """`magnitude` with the sign of `signed`: zeros keep theirs."""
    sign = signed.to(tl.int32, bitcast=True) & -0x80000000
    return (magnitude.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def _round_to_e2m1(scaled):
    """Nearest e2m1 value: one mantissa bit, so steps of 1/2 below 2, of 1 below 4, of 2 above.

    Adding and taking away 1.5 * 2 ** 23 steps lets the adder round to even multiples.
    """
    magnitude = tl.abs(scaled)
    step = tl.where(magnitude < 2.0, 0.5, tl.where(magnitude < 4.0, 1.0, 2.0))
    magic = step * 12582912.0
    return _with_sign(tl.minimum((magnitude + magic) - magic, 6.0), scaled)


@triton.jit
def _inverse_power(power):
    """`1 / power` of a normal power of two, on its exponent."""
    return ((254 << 23) - power.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)


@triton.jit
def round_pairs(even, odd, FORM: tl.constexpr):
    """A vector as it comes back from a cache of the format; `even` and `odd` are `[pairs]`."""
    if FORM != PLAIN:
        group: tl.constexpr = 8 if FORM == FP4_E4M3 else 16
        pairs: tl.constexpr = even.shape[0]
        a = even.reshape(pairs // group, group)
        b = odd.reshape(pairs // group, group)
        amax = tl.max(tl.maximum(tl.abs(a), tl.abs(b)), axis=1)[:, None]
        if FORM == FP8:
            scale = fp8_scale(amax)
            inverse = _inverse_power(scale)
            a = _with_sign(round_to_e4m3(tl.abs(a) * inverse), a) * scale
            b = _with_sign(round_to_e4m3(tl.abs(b) * inverse), b) * scale
        elif FORM == FP4_UE8M0:
            # 0x3fffff is the mantissa mask less the mantissa of 6 = 1.5 * 2 ** 2.
            bits = tl.maximum(amax, 6 * 2.0**-126).to(tl.int32, bitcast=True)
            scale = (((bits + 0x3FFFFF) & 0x7F800000) - (2 << 23)).to(tl.float32, bitcast=True)
            inverse = _inverse_power(scale)
            a = _round_to_e2m1(a * inverse) * scale
            b = _round_to_e2m1(b * inverse) * scale
        else:
            # No power of two: both divisions must round as the twin's do.
            scale = tl.minimum(
                tl.maximum(tl.div_rn(amax, tl.full(amax.shape, 6.0, tl.float32)), 2.0**-9), 448.0
            )
            scale = tl.broadcast_to(round_to_e4m3(scale), a.shape)
            a = _round_to_e2m1(tl.div_rn(a, scale)) * scale
            b = _round_to_e2m1(tl.div_rn(b, scale)) * scale
        even = a.reshape(pairs)
        odd = b.reshape(pairs)
    return even, odd


@triton.jit
def turn_factors(turns_pointer, pair, ROTARY: tl.constexpr, DIM: tl.constexpr):
    """(cos, sin) of the pairs of a vector whose last `ROTARY` dimensions turn, from the row's turns."""
    place = pair - (DIM - ROTARY) // 2
    turning = (place >= 0) & (pair < DIM // 2)
    cos = tl.load(turns_pointer + 2 * place, mask=turning, other=1.0)
    sin = tl.load(turns_pointer + 2 * place + 1, mask=turning, other=0.0)
    return cos, sin


@triton.jit
def turn_pairs(even, odd, cos, sin):
    return even * cos - odd * sin, even * sin + odd * cos


@triton.jit
def norm_pairs(even, odd, even_weight, odd_weight, eps, DIM: tl.constexpr):
    """Root-mean-square norm of one vector; padding pairs are zero."""
    inverse = tl.rsqrt(tl.sum(even * even + odd * odd, axis=0) / DIM + eps)
    return even * inverse * even_weight, odd * inverse * odd_weight


@triton.jit
def load_pairs(pointer, pair, inside):
    """Even and odd elements of one vector, in float32."""
    even = tl.load(pointer + 2 * pair, mask=inside, other=0.0).to(tl.float32)
    odd = tl.load(pointer + 2 * pair + 1, mask=inside, other=0.0).to(tl.float32)
    return even, odd


@triton.jit
def store_pairs(pointer, pair, inside, even, odd):
    tl.store(pointer + 2 * pair, even.to(pointer.dtype.element_ty), mask=inside)
    tl.store(pointer + 2 * pair + 1, odd.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def narrowed(x, like):
    """Rounded to the type that `like` points to, back in float32."""
    return x.to(like.dtype.element_ty).to(tl.float32)
