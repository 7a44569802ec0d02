"""Choosing tokens: bans, filters, and draws whose randomness is a function of what is drawn, not of when.

A random number is a hash of (seed, choice, output position, purpose, token): never of a batch, a step or a
row. The same request therefore gets the same text alone or among others, with or without speculation, before
and after a preemption. The integers are bit-equal on every device; the formulas are in engine/README.md and
their numpy form in `engine/sampling/seeds.py`.

A draw is the argmax of log-probabilities plus Gumbel noise, one number a token. Unlike inversion of a
cumulative sum it has no order of summation to depend on, and a draft drawn with the *same* noise as its
target agrees with it whenever their distributions are close: that is how drafts verify by equality and stay
exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - 2**64  # as int64: torch has no arithmetic on unsigned 64-bit integers
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)
_LARGEST_BELOW_ONE = 1.0 - 2.0**-24


def _right_shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift: int64's own repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def mix(z: Tensor) -> Tensor:
    """SplitMix64's finaliser on int64 bit patterns."""
    z = (z ^ _right_shift(z, 30)) * _FACTORS[0]
    z = (z ^ _right_shift(z, 27)) * _FACTORS[1]
    return z ^ _right_shift(z, 31)


def random_keys(seed: Tensor, choice: Tensor, position: Tensor, purpose: int) -> Tensor:
    """One int64 key per row from int64 parts; `seed` holds the bits of an unsigned seed."""
    key = mix(seed + _GOLDEN)
    key = mix(key + choice + _GOLDEN)
    key = mix(key + position + _GOLDEN)
    return mix(key + (purpose + _GOLDEN))


def uniforms(keys_rows: Tensor, vocab: int) -> Tensor:
    """Numbers in (0, 1), `[rows, vocab]` float32.

    The largest bit patterns round to 1, whose noise is infinite: a token that alone survived the filters
    would tie with those they removed. Hence the bound.
    """
    token = torch.arange(1, vocab + 1, device=keys_rows.device)
    bits = _right_shift(mix(keys_rows.unsqueeze(1) + token * _GOLDEN), 32)
    return (bits.to(torch.float32) * 2.0**-32 + 2.0**-33).clamp_(max=_LARGEST_BELOW_ONE)


def gumbel_argmax(logits_rows_vocab: Tensor, keys_rows: Tensor) -> Tensor:
    """A draw from the softmax of each row; -inf is never drawn while anything else is there."""
    noise = torch.log(-torch.log1p(-uniforms(keys_rows, logits_rows_vocab.shape[1])))
    return (logits_rows_vocab - noise).argmax(-1)


def ban_(logits_rows_vocab: Tensor, ids_rows_count: Tensor, banned_rows: Tensor) -> Tensor:
    """Set the listed ids (-1 pads) of the rows marked in `banned_rows` to -inf.

    Pads point at id 0 and add nothing there; a write would race with a real ban of id 0.
    """
    applies = banned_rows.unsqueeze(1) & (ids_rows_count >= 0)
    penalty = torch.zeros_like(ids_rows_count, dtype=logits_rows_vocab.dtype)
    penalty = penalty.masked_fill_(applies, -torch.inf)
    return logits_rows_vocab.scatter_add_(1, ids_rows_count.clamp(min=0), penalty)


def forbid_(logits_rows_vocab: Tensor, allowed_bits_rows_words: Tensor) -> Tensor:
    """Apply grammar masks: bit `i % 32` of int32 word `i // 32` clear means id `i` is forbidden."""
    vocab = logits_rows_vocab.shape[1]
    shifts = torch.arange(32, device=allowed_bits_rows_words.device, dtype=torch.int32)
    allowed = (allowed_bits_rows_words.unsqueeze(-1) >> shifts) & 1
    return logits_rows_vocab.masked_fill_(allowed.flatten(1)[:, :vocab] == 0, -torch.inf)


def keep_best(logits_rows_vocab: Tensor, top_k_rows: Tensor, top_p_rows: Tensor) -> Tensor:
    """Filter by rank and by mass; both look at the unfiltered distribution, and the stricter wins.

    A token stays while the mass of better-ranked tokens is at most `top_p`, so the crossing token stays.
    Equal logits rank by id. `top_k` 0 and `top_p` 1 are off.
    """
    ordered, order = logits_rows_vocab.sort(dim=-1, descending=True, stable=True)
    mass = ordered.softmax(-1)
    better = mass.cumsum(-1) - mass
    rank = torch.arange(ordered.shape[1], device=ordered.device)
    cut = (top_k_rows.unsqueeze(1) > 0) & (rank >= top_k_rows.unsqueeze(1))
    cut = cut | ((top_p_rows.unsqueeze(1) < 1) & (better > top_p_rows.unsqueeze(1)))
    return torch.full_like(ordered, -torch.inf).scatter_(1, order, ordered.masked_fill(cut, -torch.inf))


def accept_equal(drafts: Tensor, drawn: Tensor, draft_count: Tensor) -> Tensor:
    """Length of the accepted prefix of each sequence: drafts that equal what the target drew there.

    `drafts` is `[sequences, places]`, `drawn` `[sequences, places + 1]`; of a sequence the first
    `draft_count` drafts are verified.
    """
    place = torch.arange(drafts.shape[1], device=drafts.device)
    agrees = (drafts == drawn[:, : drafts.shape[1]]) & (place < draft_count.unsqueeze(1))
    return agrees.to(torch.int64).cumprod(-1).sum(-1)
