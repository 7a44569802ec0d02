"""A model made of hashes: no weights, exact on any machine, wrong everywhere once anything was wrong.

Tests of an engine need to know what the right text is. Here it is a hash of the sequence's own history, read
through the same structures as in a real model, so that a wrong block, a stale or foreign cache entry, an
off-by-one position, a bad snapshot, a lost token or a missed fix-up each change all text that follows. The
oracle (`solo.py`) computes the same with a list and no cache. Rejected: a tiny random transformer, whose
floating point differs between batches, and a stub that repeats its prompt, which notices nothing.

The arithmetic, modulo 2^64, for token t at position p:

    window[p] = FACTOR * window[p-1] + mix(t * TOKEN + p * POSITION)   in a ring of the state slot
    recent(p) = sum of window[j] * weight(j) over the last `window` positions; weights are odd
    ngram(p)  = t and the three tokens before it, weighted
    hidden(p) = mix(mix(recent) + ngram)                               what a row saw besides the entries
    entry[p]  = FACTOR * entry[p-1] + hidden                           in blocks, read through the table
    all(p)    = sum of entry[j] * weight(j) over all positions up to p
    digest(p) = mix(mix(all) + hidden)
    logit(id) = 24 bits of mix(digest + (id + 1) * GOLDEN), scaled to 0..8

What a row saw goes into its entry, so an error in any row, sampled or not, reaches every later token.

The recurrences are linear so that numpy can compute a chunk at once, FACTOR is odd so that nothing is
forgotten.
"""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt

from ..runner import Bools, Float32s, Int32s, Int64s, ModelFacts, UInt64s

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
TOKEN, POSITION, _WEIGHTS, FACTOR = (
    0xD6E8FEB86659FD93,
    0xA0761D6478BD642F,
    0xE7037ED1A0B428DB,
    0x8EBC6AF09C88C6E3,
)
NGRAM = (0x589965CC75374CC3, 0x1D8E4E27C47D124F, 0xEB44ACCAB455D165, 0x9FB21C651E98DF25)
INVERSE = pow(FACTOR, -1, 2**64)
_FACTOR_1, _FACTOR_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_SHIFTS = tuple(np.uint64(bits) for bits in (30, 27, 31))
_FACTORS = (np.uint64(_FACTOR_1), np.uint64(_FACTOR_2))
_FINITE, _DRAFT, _CONFIDENCE = 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5


def mix_int(z: int) -> int:
    """SplitMix64's finaliser on a Python integer, for the oracle."""
    z = ((z ^ (z >> 30)) * _FACTOR_1) & MASK
    z = ((z ^ (z >> 27)) * _FACTOR_2) & MASK
    return z ^ (z >> 31)


def mix(z: UInt64s) -> UInt64s:
    """The same on arrays."""
    z = z ^ (z >> _SHIFTS[0])
    z *= _FACTORS[0]
    z ^= z >> _SHIFTS[1]
    z *= _FACTORS[1]
    z ^= z >> _SHIFTS[2]
    return z


def words(values: Int32s | Int64s) -> UInt64s:
    """Non-negative integers as uint64; NO_TOKEN (-1) wraps, which is as good as any other id."""
    return values.astype(np.uint64)


class HashedModel(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Dimensions of a hashed model and the script of what its runner does besides the text."""

    vocab_size: int = 96
    eos_token_ids: tuple[int, ...] = (1,)
    max_positions: int = 4096
    block_tokens: int = 8
    window: int = 6  # positions whose window entries a token sees, its own included
    backtracking: int = 6
    hit_margin: int = 1
    draft_tokens: int = 0
    draft_accuracy: float = 0.7  # share of drafts that are right, by a hash: texts do not depend on it
    nonfinite_rate: float = 0.0  # share of tokens without a finite logit, by a hash

    @property
    def facts(self) -> ModelFacts:
        """Sizes as of a real model: 8 bytes an entry."""
        return ModelFacts(
            vocab_size=self.vocab_size,
            eos_token_ids=self.eos_token_ids,
            max_positions=self.max_positions,
            block_tokens=self.block_tokens,
            block_bytes=8 * self.block_tokens,
            state_bytes=8 * self.ring,
            draft_tokens=self.draft_tokens,
            backtracking=self.backtracking,
            hit_margin=self.hit_margin,
        )

    @property
    def ring(self) -> int:
        """Entries of a window ring."""
        return self.window + self.backtracking

    @cached_property
    def weights(self) -> UInt64s:
        """Odd multipliers by position, uint64 [positions]; drafts look a little beyond the last one."""
        positions = np.arange(self.max_positions + 2 * self.backtracking + 64, dtype=np.uint64)
        return mix(positions * np.uint64(GOLDEN) + np.uint64(_WEIGHTS)) | np.uint64(1)

    @cached_property
    def powers(self) -> tuple[UInt64s, UInt64s]:
        """FACTOR and its inverse to the power of every position, uint64 [positions]."""
        factors = np.empty((2, len(self.weights)), dtype=np.uint64)
        factors[:] = np.array([[FACTOR], [INVERSE]], dtype=np.uint64)
        factors[:, 0] = 1
        forward, backward = np.cumprod(factors, axis=1, dtype=np.uint64)
        return forward, backward

    def content(self, tokens: UInt64s, positions: Int32s | Int64s) -> UInt64s:
        return mix(tokens * np.uint64(TOKEN) + words(positions) * np.uint64(POSITION))

    def hidden(self, recent: UInt64s, ngram: UInt64s) -> UInt64s:
        return mix(mix(recent) + ngram)

    def digest(self, everything: UInt64s, hidden: UInt64s) -> UInt64s:
        return mix(mix(everything) + hidden)

    def logits(self, digests: UInt64s) -> Float32s:
        """float32 [rows, vocab], multiples of 2^-21: exact, so equal everywhere."""
        ids = np.arange(1, self.vocab_size + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        bits = mix(digests[:, None] + ids) >> np.uint64(40)
        scaled: Float32s = bits.astype(np.float32) * np.float32(2.0**-21)
        return scaled

    def finite(self, digests: UInt64s) -> Bools:
        """Whether a row has a finite logit at all; by script."""
        if not self.nonfinite_rate:
            return np.ones(digests.shape, dtype=np.bool_)
        return self._share(digests, _FINITE) >= self.nonfinite_rate

    def draft_chances(self, digests: UInt64s) -> npt.NDArray[np.float64]:
        """Confidence in the draft for the token after each row: honest, and about `draft_accuracy`."""
        spread = min(self.draft_accuracy, 1.0 - self.draft_accuracy)
        return self.draft_accuracy + spread * (2.0 * self._share(digests, _CONFIDENCE) - 1.0)

    def draft_logits(self, digests: UInt64s) -> Float32s:
        """Of drafts where they are drawn from a distribution: the right one as often, else another's."""
        right = self.draft_is_right(digests, self.draft_chances(digests))
        return self.logits(np.where(right, digests, mix(digests ^ np.uint64(_DRAFT))))

    def draft_is_right(self, digests: UInt64s, chances: npt.NDArray[np.float64]) -> Bools:
        """Whether that draft is the right one; by script, as often as its confidence says."""
        return self._share(digests, _DRAFT) < chances

    def _share(self, digests: UInt64s, salt: int) -> npt.NDArray[np.float64]:
        bits = mix(digests ^ np.uint64(salt)) >> np.uint64(11)
        shares: npt.NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
        return shares
