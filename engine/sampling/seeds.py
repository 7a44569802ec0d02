"""Random numbers as a function of what is drawn, never of when, where or beside whom it is drawn.

A sequence must get the same text alone or in a batch, with drafts or without, before and after a preemption.
So a random number is a hash of (seed, choice, output position, purpose, token) and there is no generator
whose state could depend on the order of draws. Rejected: Philox keyed by row and step (the engine we learned
from), which changes the text of a fixed seed whenever a step boundary moves.

This file is the reference: numpy, vectorised, integers modulo 2^64. The device twins
(`devices/kernels/reference/sampling.py`) produce the same integers bit for bit and the same floats to
rounding. Invariant: no function here looks at the shape of a batch.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepahead.engine.model.runner import Float32s, Int32s, UInt64s

TARGET, ACCEPT, RESIDUAL, DRAFT = 0, 1, 2, 3
"""Purposes: the target model's draw, the test of a draft, the draw after a rejection, and a draft's own draw,
to which its place in the window is added: a position may be guessed in several windows."""

Integers = npt.ArrayLike
"""Anything numpy reads as integers of at most 64 bits; negative ones wrap."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1, _FACTOR_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_LARGEST = np.float32(1.0 - 2.0**-24)  # the last float32 below 1


def key(seed: Integers, choice: Integers, position: Integers, purpose: Integers) -> UInt64s:
    """One 64-bit key per draw; the arguments broadcast.

    `position` is the output position of the token being drawn: 0 for the first token after the prompt.
    """
    state = _mix(_words(seed) + _GOLDEN)
    for part in (choice, position, purpose):
        state = _mix(state + _words(part) + _GOLDEN)
    return state


def bits(keys: UInt64s, index: Integers) -> UInt64s:
    """32 random bits (as uint64 below 2^32) for entry `index` of each key's table; broadcasts."""
    return _mix(keys + (_words(index) + np.uint64(1)) * _GOLDEN) >> np.uint64(32)


def uniform(keys: UInt64s, index: Integers) -> Float32s:
    """float32 in (0, 1), both ends excluded.

    The largest bit patterns round to 1.0, where the noise of `draw` would be infinite and the only token that
    a filter left would lose to the ones it removed. Hence the bound.
    """
    scaled = bits(keys, index).astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    bounded: Float32s = np.minimum(scaled, _LARGEST)
    return bounded


def draw(logprobs: Float32s, keys: UInt64s) -> Int32s:
    """Draws one id per row: float32 [rows, vocab] (unnormalised is fine, -inf never wins) and keys [rows].

    Argmax of log-probability plus Gumbel noise, the lowest id on ties.
    """
    ids = np.arange(logprobs.shape[-1], dtype=np.uint64)
    noise = np.log(-np.log1p(-uniform(keys[:, None], ids)))
    ids_drawn: Int32s = (logprobs - noise).argmax(-1).astype(np.int32)
    return ids_drawn


def _words(values: Integers) -> UInt64s:
    """uint64 of at least one dimension: numpy warns about the overflow of scalars and not of arrays."""
    return np.atleast_1d(np.asarray(values)).astype(np.uint64)


def _mix(state: UInt64s) -> UInt64s:
    """SplitMix64's finaliser."""
    state = (state ^ (state >> np.uint64(30))) * _FACTOR_1
    state = (state ^ (state >> np.uint64(27))) * _FACTOR_2
    return state ^ (state >> np.uint64(31))
