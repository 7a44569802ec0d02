"""Random numbers of a draw, and the order of float bits, as functions other kernels call.

The integers are those of `reference.sampling.noise`, bit for bit. The logarithms are written out: the
hardware's `lg2` is exact to 2^-22 *absolutely*, and the winner of 129,280 draws is a token whose uniform
number lies near 0, where that error is percents of `log1p(-u)` and would bend the distribution. The
polynomial is Cephes' `logf` (relative error below 2^-23 on either side of 1), its first use corrected for
the rounding of `1 - u`.
"""

from __future__ import annotations

import triton
import triton.language as tl

_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)


@triton.jit
def _mix(z):
    """SplitMix64's finaliser on uint64."""
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def row_key(seed, choice, position):
    """uint64 key of a draw; the purpose of every draw is 0 (`TARGET`)."""
    key = _mix(seed.to(tl.uint64) + _GOLDEN)
    key = _mix(key + choice.to(tl.uint64) + _GOLDEN)
    key = _mix(key + position.to(tl.uint64) + _GOLDEN)
    return _mix(key + _GOLDEN)


@triton.jit
def uniform(key, ids):
    """float32 in (0, 1) of each token."""
    hashes = _mix(key + (ids.to(tl.uint64) + 1) * _GOLDEN) >> 32
    scaled = hashes.to(tl.uint32).to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10
    return tl.minimum(scaled, 0.999999940395355224609375)


@triton.jit
def _log(x):
    """Of positive normal float32."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    f = (bits - (exponent << 23)).to(tl.float32, bitcast=True) - 1.0
    e = exponent.to(tl.float32)
    y = f * 7.0376836292e-2 - 1.1514610310e-1
    y = y * f + 1.1676998740e-1
    y = y * f - 1.2420140846e-1
    y = y * f + 1.4249322787e-1
    y = y * f - 1.6668057665e-1
    y = y * f + 2.0000714765e-1
    y = y * f - 2.4999993993e-1
    y = y * f + 3.3333331174e-1
    y = y * f * f * f
    y = y + e * -2.12194440e-4 - 0.5 * f * f
    return f + y + e * 0.693359375


@triton.jit
def negative_gumbel(key, ids):
    """log(-log1p(-u)) of each token: what a draw subtracts from a log-probability."""
    u = uniform(key, ids)
    rest = 1.0 - u
    lost = (1.0 - rest) - u  # what rounding took from `rest`
    return _log(-(_log(rest) + lost / rest))


@triton.jit
def rising(values):
    """int32 in the order of float32 values; both zeros are one number."""
    bits = (values + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
