"""How many drafts a step verifies, and whose: survival, the split of a total, and the best total.

A draft counts only if all before it were accepted, so what a row of a draft is worth is the product of the
confidences up to it, its *survival*. Survivals never rise along a sequence, hence the best `spare` drafts of
a step always are prefixes: taking the largest anywhere can never take a draft without those before it.

Two rounds of confidences enter a step, and their parts must not be mixed up. Whether draft i is verified may
depend on confidences up to i, never on a later one: that one is computed from what draft i turned out to be,
and a choice made with it would prefer some tokens over others. The split of step n uses round n-1, those very
drafts: ranks of survivals, where a later draft of the same sequence can never stand before an earlier one.
Their total would feel every confidence, so it is chosen with round n-2, whose drafts are history; and it is
what the host must know early. Rejected: total and split from the newest round, as a planner without overlap
easily could; and a threshold on survival alone, which knows nothing of what a row costs just now.

Everything here is a function of its arguments. `deal` has a twin on the device (model/v41/dealing.py).
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from stepahead.engine.model.runner import Float32s, Int32s

Float64s = npt.NDArray[np.float64]

WORTH_CHOOSING = 0.02
"""Of tokens per second, what fewer drafts must promise beyond all of them. Where rows are all but free, a
choice gains nothing and costs the host: the device deals the rows, and a layout of another size is sent
there."""

MOST_CANDIDATES = 64
"""Totals compared per step, evenly spread: with a thousand drafts one row more or less decides nothing."""


MANY = 32
"""Sequences from which one operation a place is faster than one for all."""

FEW = 10
"""Drafts up to which a loop is faster than whole arrays."""


class Budget(msgspec.Struct, frozen=True):
    """A chosen number of drafts, and what the cost model expects of the step."""

    spare: int  # drafts verified: decode rows beyond one a sequence
    tokens: float  # expected of the whole step
    seconds: float


def survivals(confidences: Float32s) -> Float32s:
    """Chance `[b, D]` that each draft and all before it are accepted, from conditional chances `[b, D]`."""
    if len(confidences) < MANY:
        few: Float32s = np.multiply.accumulate(confidences, axis=1)
        return few
    chances = confidences.copy()  # accumulating along short rows costs three times as much
    for place in range(1, chances.shape[1]):
        np.multiply(chances[:, place - 1], chances[:, place], chances[:, place])
    return chances


def deal(survival: Float32s, most: Int32s, spare: int) -> Int32s:
    """Rows int32 `[b]` of each sequence: one, and one for each of its drafts among the `spare` best.

    `survival` `[b, D]` never rises along a row, `most` `[b]` caps a sequence's drafts. Ties go to the lower
    flat index. `spare` is at most the sum of the caps (each at most D).
    """
    sequences, drafts = survival.shape
    allowed = np.arange(drafts) < most[:, None]
    ranked = np.where(allowed, survival, np.float32(-1.0)).ravel()
    best = np.argsort(-ranked, kind="stable")[:spare]
    lengths: Int32s = np.bincount(best // max(drafts, 1), minlength=sequences).astype(np.int32)
    lengths += 1
    return lengths


def even_split(most: Int32s, spare: int) -> Int32s:
    """Rows int32 `[b]` under the same caps, as equal as they allow: a split that needs no confidence.

    It stands in a layout whose rows the device deals anew, so that layouts of one total are one object.
    """
    depth, order = np.arange(1, int(most.max(initial=0)) + 1), np.arange(most.size)
    taken = most[:, None] >= depth
    rank = depth * most.size + order[:, None]  # everybody's first draft, then everybody's second ...
    chosen = np.sort(rank[taken])[:spare] % max(most.size, 1)
    lengths: Int32s = np.bincount(chosen, minlength=most.size).astype(np.int32)
    lengths += 1
    return lengths


def best_budget(survival: Float32s, seconds: Float64s, least_gain: float = WORTH_CHOOSING) -> Budget:
    """The number of drafts with the most expected tokens per second, all of them if `least_gain` is more than
    that gains.

    `survival` `[b, D]` holds 0 for drafts that may not be verified; `seconds` `[most + 1]` is what the step
    takes with 0, 1, ... `most` drafts.
    """
    most = seconds.size - 1
    if most <= FEW:
        return _best_of_few(survival, seconds, least_gain)
    worth = survival.flatten()
    worth.sort()
    tokens: Float64s = np.empty(most + 1)
    tokens[0], tokens[1:] = survival.shape[0], worth[: -most - 1 : -1]
    np.add.accumulate(tokens, out=tokens)
    stride = -(-most // MOST_CANDIDATES)
    chosen = int((tokens[::stride] / seconds[::stride]).argmax()) * stride
    best = Budget(chosen, float(tokens[chosen]), float(seconds[chosen]))
    return _all_unless_better(best, Budget(most, float(tokens[most]), float(seconds[most])), least_gain)


def _all_unless_better(best: Budget, everything: Budget, least_gain: float) -> Budget:
    hardly = everything.tokens * best.seconds >= (1.0 - least_gain) * best.tokens * everything.seconds
    return everything if hardly else best


def _best_of_few(survival: Float32s, seconds: Float64s, least_gain: float) -> Budget:
    """The same in plain numbers, which for a sequence or two costs a third."""
    tokens = float(survival.shape[0])
    best = last = Budget(-1, 0.0, 1.0)
    worth = sorted(survival.ravel().tolist(), reverse=True)
    for spare, time in enumerate(seconds.tolist()):
        if spare:
            tokens += worth[spare - 1]
        last = Budget(spare, tokens, time)
        if tokens * best.seconds > best.tokens * time:
            best = last
    return _all_unless_better(best, last, least_gain)


def budget_for_targets(survival: Float32s, seconds: Float64s, targets: Float64s) -> Budget:
    """The same under latency targets: seconds per token `[b]`, infinite where a sequence has none.

    A sequence's pace is the step's time by the tokens it may expect of it: more drafts for others make the
    step longer, more of its own make it worth more. Among the totals that keep every target the one with the
    best throughput is taken; if none does, the one whose worst sequence is least behind.
    """
    most = seconds.size - 1
    stride = max(1, -(-most // MOST_CANDIDATES))
    spare = np.arange(0, most + 1, stride)
    flat = survival.ravel()
    order = np.argsort(-flat, kind="stable")
    rank = np.empty(order.size, dtype=np.int64)
    rank[order] = np.arange(order.size)
    held = np.flatnonzero(np.isfinite(targets))
    verified = rank.reshape(survival.shape)[held, :, None] < spare
    expected = 1.0 + (verified * survival[held, :, None]).sum(axis=1)
    behind = (seconds[spare] / expected / targets[held, None]).max(axis=0, initial=0.0)
    total = survival.shape[0] + np.concatenate([[0.0], np.cumsum(flat[order])])[spare]
    rate = np.where(behind <= 1.0, total / seconds[spare], -1.0)
    best = int(rate.argmax() if rate.max() > 0 else behind.argmin())
    return Budget(int(spare[best]), float(total[best]), float(seconds[spare[best]]))
