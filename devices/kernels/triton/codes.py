"""Codes of quantized weights expanded in registers, and activations rounded to FP8: parts of other kernels.

A decode step reads every weight once and multiplies it a few times, so what a kernel spends per weight on
expanding it decides whether it keeps up with memory: at 4.3 TB/s an H200 has four instructions for a 4-bit
weight, two of them logic or shifts. The conversions of the hardware are slower than that. Here the bits of a
code are moved to where a bfloat16 has them, two at a time; the exponent is then off by a constant, and one
multiplication by `scale * 2 ** constant` sets it right and applies the scale. Subnormal codes become
subnormal bfloat16 numbers, which that multiplication normalises, so every code is exact.

The interpreter has no inline assembly: it runs the same arithmetic on float32 (`assembly=False`).
"""

from __future__ import annotations

import triton
import triton.language as tl

PLAIN = tl.constexpr(0)
FP8_BLOCK = tl.constexpr(1)
MXFP4 = tl.constexpr(2)

_E4M3_PAIRS = tl.constexpr("""{
.reg .b32 low, high, left, right, scale, other;
prmt.b32 low, $2, 0, 0x1404;
prmt.b32 high, $2, 0, 0x3424;
shr.u32 left, low, 4;
shr.u32 right, high, 4;
and.b32 left, left, 0x07f007f0;
and.b32 right, right, 0x07f007f0;
lop3.b32 left, low, 0x80008000, left, 0xea;
lop3.b32 right, high, 0x80008000, right, 0xea;
mad.lo.u32 scale, $3, 0x00800080, 0x3c003c00;
mad.lo.u32 other, $5, 0x00800080, 0x3c003c00;
mul.bf16x2 $0, left, scale;
mul.bf16x2 $1, right, other;
}""")
"""Bytes move to the upper halves of words; sign in place, the rest four bits down; `2 ** (scale - 7)`."""

_E2M1_PAIRS = tl.constexpr("""{
.reg .b32 low, high, a, b, c, d, scale, other;
prmt.b32 low, $4, 0, 0x4140;
prmt.b32 high, $4, 0, 0x4342;
and.b32 a, low, 0x000f000f;
and.b32 b, high, 0x000f000f;
and.b32 c, low, 0x00f000f0;
and.b32 d, high, 0x00f000f0;
mul.lo.u32 a, a, 0x1040;
mul.lo.u32 b, b, 0x1040;
mul.lo.u32 c, c, 0x104;
mul.lo.u32 d, d, 0x104;
and.b32 a, a, 0x81c081c0;
and.b32 b, b, 0x81c081c0;
and.b32 c, c, 0x81c081c0;
and.b32 d, d, 0x81c081c0;
mad.lo.u32 scale, $5, 0x00800080, 0x3f003f00;
mad.lo.u32 other, $7, 0x00800080, 0x3f003f00;
mul.bf16x2 $0, a, scale;
mul.bf16x2 $1, b, other;
mul.bf16x2 $2, c, scale;
mul.bf16x2 $3, d, other;
}""")
"""Bytes move to the lower halves of words. A multiplication shifts a code twice, its sign to bit 15 and its
magnitude to bits 6 to 8, on the units that have time: those of logic and shifts are half as wide and would be
the bottleneck."""


@triton.jit
def scale_places(scales_ptr, row, columns: tl.constexpr, STEP: tl.constexpr, WORDS: tl.constexpr):
    """Where the scales of the first `STEP` columns of some rows of scales are.

    `WORDS`: four bytes at once, where `STEP` and `columns` are multiples of 128. An asynchronous copy moves
    at least four bytes a thread, and a loop that waits for its scales waits for memory at every step.
    """
    if WORDS:
        words_ptr = scales_ptr.to(tl.pointer_type(tl.int32))
        places = words_ptr + row[:, None] * (columns // 128) + tl.arange(0, STEP // 128)[None, :]
    else:
        places = scales_ptr + row[:, None] * (columns // 32) + tl.arange(0, STEP // 32)[None, :]
    return places


@triton.jit
def _repeated(scales, bytes_per_scale: tl.constexpr, count: tl.constexpr):
    """The scale byte of each of `count` payload bytes of a row, as an int32, from bytes or words of four.

    Two neighbours always share it: pairs are multiplied by one factor above.
    """
    rows: tl.constexpr = scales.shape[0]
    groups: tl.constexpr = count // bytes_per_scale
    if scales.dtype == tl.int32:
        shifts = (tl.arange(0, 4) * 8)[None, None, :]
        scales = ((scales[:, :, None] >> shifts) & 0xFF).reshape(rows, groups)
    scales = tl.broadcast_to(scales.to(tl.int32)[:, :, None], (rows, groups, bytes_per_scale))
    return scales.reshape(rows, count)


@triton.jit
def _factor(scales, offset: tl.constexpr):
    """`2 ** (scale + offset - 127)` in float32."""
    return ((scales + offset) << 23).to(tl.float32, bitcast=True)


@triton.jit
def expand_e4m3(codes, scales, assembly: tl.constexpr):
    """`[rows, k]` uint8 codes with their scales (bytes, or words of four): bfloat16 `[rows, k]`, exact."""
    if assembly:
        weight = tl.inline_asm_elementwise(
            _E4M3_PAIRS,
            "=&r,=&r,r,r,r,r,r",
            [codes, _repeated(scales, 32, codes.shape[1])],
            dtype=tl.bfloat16,
            is_pure=True,
            pack=4,
        )
    else:
        wide = codes.to(tl.int32)
        bits = ((wide & 0x7F) << 20) | ((wide & 0x80) << 24)
        factor = _factor(_repeated(scales, 32, codes.shape[1]), 120)
        weight = (bits.to(tl.float32, bitcast=True) * factor).to(tl.bfloat16)
    return weight


@triton.jit
def expand_e2m1(pairs, scales, assembly: tl.constexpr):
    """`[rows, k / 2]` bytes with their scales: the even and the odd columns, each bfloat16 `[rows, k / 2]`.

    Exact. Joining them would move every weight between threads; the columns of the other factor are parted
    instead.
    """
    if assembly:
        even, odd = tl.inline_asm_elementwise(
            _E2M1_PAIRS,
            "=&r,=&r,=&r,=&r,r,r,r,r,r",
            [pairs, _repeated(scales, 16, pairs.shape[1])],
            dtype=(tl.bfloat16, tl.bfloat16),
            is_pure=True,
            pack=4,
        )
    else:
        wide = pairs.to(tl.int32)
        factor = _factor(_repeated(scales, 16, pairs.shape[1]), 126)
        low = ((wide & 0x07) << 22) | ((wide & 0x08) << 28)
        high = ((wide & 0x70) << 18) | ((wide & 0x80) << 24)
        even = (low.to(tl.float32, bitcast=True) * factor).to(tl.bfloat16)
        odd = (high.to(tl.float32, bitcast=True) * factor).to(tl.bfloat16)
    return even, odd


@triton.jit
def dot(left, right, sums, assembly: tl.constexpr):
    """`sums + left @ right` in float32; float32 factors lose nothing, and the interpreter has no bfloat16."""
    if assembly:
        sums = tl.dot(left, right, sums, input_precision="ieee")
    else:
        sums = tl.dot(left.to(tl.float32), right.to(tl.float32), sums, input_precision="ieee")
    return sums


@triton.jit
def wide_dot(left, right, sums, assembly: tl.constexpr):
    """`dot`, but float32 factors meet in the matrix units as three bfloat16 numbers each: all of their bits,
    and the six products that matter to float32. Outside of them a small product takes several times as
    long; tf32 would keep ten bits.
    """
    if assembly and left.dtype == tl.float32:
        sums = tl.dot(left, right, sums, input_precision="bf16x6")
    else:
        sums = dot(left, right, sums, assembly)
    return sums


@triton.jit
def fp8_scale(amax):
    """The power of two under which `amax` fits e4m3, as the published rule has it: on exponent bits.

    0x1fffff is the mantissa mask less the mantissa of 448 = 1.75 * 2 ** 8.
    """
    bits = tl.maximum(amax, 1e-4).to(tl.int32, bitcast=True)
    return (((bits + 0x1FFFFF) & 0x7F800000) - (8 << 23)).to(tl.float32, bitcast=True)


@triton.jit
def round_to_e4m3(scaled):
    """Nearest e4m3 value, ties to even, of float32 values within its range.

    Adding and taking away one and a half times 2 ** 23 steps lets the adder round; a step is an eighth of
    the value's power of two, and 2 ** -9 below the smallest normal code.
    """
    exponent = scaled.to(tl.int32, bitcast=True) & 0x7F800000
    exponent = tl.maximum(exponent, (127 - 6) << 23)
    magic = (exponent + ((23 - 3) << 23) | 0x400000).to(tl.float32, bitcast=True)
    return (scaled + magic) - magic


@triton.jit
def fp8_round_trip(x, groups: tl.constexpr):
    """float32 `[rows, groups * 32]`: 32 columns at a time as they come back from FP8."""
    rows: tl.constexpr = x.shape[0]
    grouped = x.reshape(rows, groups, 32)
    scale = fp8_scale(tl.max(tl.abs(grouped), axis=2))[:, :, None]
    # A power of two is inverted on its exponent: the hardware's quick division is not exact.
    inverse = ((254 << 23) - scale.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    return (round_to_e4m3(grouped * inverse) * scale).reshape(rows, groups * 32)
