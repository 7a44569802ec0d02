"""Rejection sampling of the hashed model: the rules, for one sequence at a time; batch and oracle share them.

A draft comes from another distribution than its target's, so that all three ends of a verification happen:
accepted, rejected with something left of the target, and no draft to verify. Keys are by output position.
"""

from __future__ import annotations

import numpy as np

from stepahead.engine.sampling.seeds import ACCEPT, DRAFT, RESIDUAL, TARGET, draw, key, uniform

from ..runner import NO_TOKEN, Float32s, Int32s, UInt64s
from .choosing import RowParams, choose, log_softmax, processed
from .model import HashedModel


def probabilities(logits: Float32s, params: RowParams, output_positions: Int32s) -> Float32s:
    """What rows that draw at random draw from, float32 [rows, vocab]."""
    chances: Float32s = np.exp(log_softmax(processed(logits, params, output_positions)))
    return chances


def guess(
    model: HashedModel, digests: UInt64s, params: RowParams, output_positions: Int32s, place: int
) -> tuple[Int32s, Float32s]:
    """Drafts for the token after each row, int32 [rows], and what they were drawn from, [rows, vocab].

    `place` in the window: see the runner's `v41/rejection.py`.
    """
    logits = model.draft_logits(digests)
    drafts, from_what = choose(logits, params, output_positions), np.zeros_like(logits)
    (random,) = np.nonzero(params.temperature > 0)
    if random.size:
        own, output = params.only(random), output_positions[random]
        from_what[random] = probabilities(logits[random], own, output)
        drafts[random] = _draw(from_what[random], key(own.seed, own.choice, output, DRAFT + place))
    return drafts, from_what


def verify(
    logits: Float32s, params: RowParams, output_positions: Int32s, drafts: Int32s, from_what: Float32s
) -> tuple[int, int]:
    """How many drafts of one sequence stand, and the token behind them.

    Rows [count] of one window that draws at random; `drafts` [count - 1], `from_what` [count - 1, vocab].
    """
    target = probabilities(logits, params, output_positions)
    count = len(drafts)
    keys = {
        purpose: key(params.seed, params.choice, output_positions, purpose)
        for purpose in (TARGET, ACCEPT, RESIDUAL)
    }
    for place, draft in enumerate(drafts.tolist()):
        own, guessed = target[place : place + 1], from_what[place : place + 1]
        if draft == NO_TOKEN:
            guessed = np.zeros_like(guessed)
        elif uniform(keys[ACCEPT][place : place + 1], 0)[0] * guessed[0, draft] < own[0, draft]:
            continue
        left = np.maximum(own - guessed, 0)
        return place, int(_draw(left if left.any() else own, keys[RESIDUAL][place : place + 1])[0])
    return count, int(_draw(target[count:], keys[TARGET][count:])[0])


def _draw(chances: Float32s, keys: UInt64s) -> Int32s:
    with np.errstate(divide="ignore"):
        return draw(np.log(chances), keys)
