"""Noise: integers bit-equal on every device (formulas in engine/README.md), and the draws made with it.

The host's twin is `engine/sampling/seeds.py`. Work is done in place where it is large: 64-bit hashes of a
vocabulary are eight bytes a token, and a step that waits for memory waits ten times as long as for the
arithmetic.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .best import likeliest

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as int64: torch has no arithmetic on unsigned 64-bit integers
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24
_PIECE = 1 << 17
"""Tokens hashed at a time on a CPU: 1 MiB of hashes, which its cache holds."""


def _right_shift(z: Tensor, bits: int, shifted: Tensor) -> Tensor:
    """Logical shift into `shifted`: int64's own repeats the sign."""
    torch.bitwise_right_shift(z, bits, out=shifted)
    return shifted.bitwise_and_((1 << (64 - bits)) - 1)


def _mix_(z: Tensor) -> Tensor:
    shifted = torch.empty_like(z)
    z.bitwise_xor_(_right_shift(z, 30, shifted)).mul_(_FACTORS[0])
    z.bitwise_xor_(_right_shift(z, 27, shifted)).mul_(_FACTORS[1])
    return z.bitwise_xor_(_right_shift(z, 31, shifted))


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 bit patterns."""
    return _mix_(z.clone())


def random_keys(seed: Tensor, choice: Tensor, position: Tensor, purpose: int) -> Tensor:
    """One int64 key per row from int64 parts; `seed` holds the bits of an unsigned seed."""
    key = mix(seed + _GOLDEN)
    key = mix(key + choice + _GOLDEN)
    key = mix(key + position + _GOLDEN)
    return mix(key + (purpose + _GOLDEN))


def _strides(ids: Tensor) -> Tensor:
    """What tokens add to a row's key."""
    return (ids + 1).mul_(_GOLDEN)


def _uniforms_at(keys_rows: Tensor, strides: Tensor) -> Tensor:
    """Numbers in (0, 1) of tokens with these strides `[rows or 1, count]`, float32 `[rows, count]`.

    The largest bit patterns round to 1, whose noise is infinite: a token that alone survived the filters
    would tie with those they removed. Hence the bound.
    """
    hashes = _mix_(keys_rows.unsqueeze(1) + strides)
    bits = _right_shift(hashes, 32, hashes)
    return bits.to(torch.float32).mul_(2.0**-32).add_(2.0**-33).clamp_(max=_LARGEST_BELOW_ONE)


def _negative_gumbel_(uniforms: Tensor) -> Tensor:
    """log(-log1p(-u)) in place; `u` is contiguous, so that every element takes the same code path."""
    return uniforms.neg_().log1p_().neg_().log_()


def uniforms(keys_rows: Tensor, vocab: int) -> Tensor:
    """Numbers in (0, 1), `[rows, vocab]` float32."""
    return _uniforms_at(keys_rows, _strides(torch.arange(vocab, device=keys_rows.device)))


def gumbel_argmax(logits_rows_vocab: Tensor, keys_rows: Tensor) -> Tensor:
    """A draw from the softmax of each row; -inf is never drawn while anything else is there."""
    rows, vocab = logits_rows_vocab.shape
    strides = _strides(torch.arange(vocab, device=keys_rows.device))
    size = max(_PIECE // vocab, 1) if keys_rows.device.type == "cpu" else max(rows, 1)
    drawn = torch.empty_like(keys_rows)
    for first in range(0, rows, size):
        piece = slice(first, first + size)
        noise = _negative_gumbel_(_uniforms_at(keys_rows[piece], strides))
        drawn[piece] = likeliest(logits_rows_vocab[piece] - noise)[0]
    return drawn


def draw_candidate(values_rows_count: Tensor, ids_rows_count: Tensor, keys_rows: Tensor) -> Tensor:
    """The same draw among few: token `ids` with log-probability `values`, whatever their order.

    Equals `gumbel_argmax` of rows that are -inf everywhere else: ties go to the lowest id.
    """
    noise = _negative_gumbel_(_uniforms_at(keys_rows, _strides(ids_rows_count)))
    score = values_rows_count - noise
    tied = score == score.amax(-1, keepdim=True)
    return torch.where(tied, ids_rows_count, ids_rows_count.amax(-1, keepdim=True)).amin(-1)
