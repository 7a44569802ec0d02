"""What filters keep of a row, the draw among it, and the report of its likeliest tokens.

One program decides one row from its candidates: some ids in any order, among them everything that may be kept
or reported. The threshold is found by bisection on the monotone bits of the logits. Masses are integers, so
a sum has no order and the tokens kept depend neither on how candidates were collected nor on how many came
along; ties go to the lowest ids, which a second bisection finds when not all of them fit. Rejected: sorting
(a bitonic sort of 2,048 costs more than 32 sums) and histograms (Triton's have no weights).

The first candidates live in registers; `STREAMED` programs may have more, which they read again each time
and add up lane by lane: what lanes hold is joined once a pass, since joining them is what takes long.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .sampling_noise import negative_gumbel, rising

_LOWEST = tl.constexpr(-2147483648)
_NO_ID = tl.constexpr(2147483647)


@triton.jit
def masses(values, peak, SCALE: tl.constexpr):
    """int64 exp(value - peak) * 2^SCALE; 0 for -inf, and for what is no number."""
    shares = tl.exp(values - peak)
    return (tl.where(shares == shares, shares, 0.0) * (2.0**SCALE)).to(tl.int64)


@triton.jit
def more_candidates(source, listed, start, count, is_listed, BLOCK: tl.constexpr):
    """Values, ids and validity of candidates `start` to `start + BLOCK`; `listed` names them, or all are."""
    place = start + tl.arange(0, BLOCK)
    valid = place < count
    ids = tl.where(is_listed, tl.load(listed + place, mask=valid & is_listed, other=0), place)
    values = tl.load(source + ids, mask=valid, other=float("-inf"))
    return values, ids, valid & (values == values)


@triton.jit
def _above(
    keys, mass, valid, threshold, source, listed, count, is_listed, peak,
    SCALE: tl.constexpr, STREAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How many candidates lie above a threshold, and their mass."""
    over = valid & (keys > threshold)
    number = over.to(tl.int32)
    weight = tl.where(over, mass, 0)
    if STREAMED:
        start = BLOCK
        while start < count:
            y, _, more = more_candidates(source, listed, start, count, is_listed, BLOCK)
            over = more & (rising(y) > threshold)
            number += over.to(tl.int32)
            weight += tl.where(over, masses(y, peak, SCALE), 0)
            start += BLOCK
    return tl.sum(number), tl.sum(weight)


@triton.jit
def _highest(
    keys, valid, most, source, listed, count, is_listed, STREAMED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The highest key up to `most`."""
    highest = tl.where(valid & (keys <= most), keys, _LOWEST)
    if STREAMED:
        start = BLOCK
        while start < count:
            y, _, more = more_candidates(source, listed, start, count, is_listed, BLOCK)
            own = rising(y)
            highest = tl.maximum(highest, tl.where(more & (own <= most), own, _LOWEST))
            start += BLOCK
    return tl.max(highest)


@triton.jit
def _tied(
    keys, ids, valid, threshold, last_id, source, listed, count, is_listed,
    STREAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """How many candidates equal the threshold, ids up to `last_id`."""
    number = (valid & (keys == threshold) & (ids <= last_id)).to(tl.int32)
    if STREAMED:
        start = BLOCK
        while start < count:
            y, more_ids, more = more_candidates(source, listed, start, count, is_listed, BLOCK)
            number += (more & (rising(y) == threshold) & (more_ids <= last_id)).to(tl.int32)
            start += BLOCK
    return tl.sum(number)


@triton.jit
def threshold_of(
    y, ids, valid, source, listed, count, is_listed, peak, total, top_k, top_p, low, high, reach, over,
    VOCAB: tl.constexpr, SCALE: tl.constexpr, STREAMED: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(threshold, last id): kept are keys above the threshold, and equal ones up to the last id.

    Halving the interval ends where one candidate is left in it: some 17 steps, where all bits would take 32.

    `total` is the mass of the whole row. A token stays while fewer than `top_k` are better and these hold at
    most `top_p` of the total. Keys `low` to `high` (int64) hold the threshold, `reach` candidates lie from
    `low` on, `over` above `high`.
    """
    keys, mass = rising(y), masses(y, peak, SCALE)
    by_count, by_mass = top_k > 0, top_p < 1
    limit = (top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
    high = tl.where(by_count | by_mass, high, low)
    while (low < high) & (reach - over > 1):
        middle = (low + high) >> 1
        number, weight = _above(
            keys, mass, valid, middle.to(tl.int32), source, listed, count, is_listed, peak,
            SCALE, STREAMED, BLOCK,
        )  # fmt: skip
        fits = ((top_k <= 0) | (number < top_k)) & ((top_p >= 1) | (weight <= limit))
        high, over = tl.where(fits, middle, high), tl.where(fits, number, over)
        low, reach = tl.where(fits, low, middle + 1), tl.where(fits, reach, number)
    threshold = low.to(tl.int32)
    if low < high:  # one candidate is left between them
        threshold = _highest(
            keys, valid, high.to(tl.int32), source, listed, count, is_listed, STREAMED, BLOCK
        )
    last = tl.full((), VOCAB - 1, tl.int32)
    if by_count | by_mass:
        number, weight = _above(
            keys, mass, valid, threshold, source, listed, count, is_listed, peak, SCALE, STREAMED, BLOCK
        )
        tied = _tied(keys, ids, valid, threshold, last, source, listed, count, is_listed, STREAMED, BLOCK)
        each = tl.sum(masses(_value_of(threshold), peak, SCALE))
        room = tl.where(by_count, top_k - number, tied)
        fit = (limit - weight) // tl.maximum(each, 1) + 1
        room = tl.minimum(room, tl.where(by_mass & (each > 0), fit, tied))
        if room < tied:
            first = tl.full((), 0, tl.int32)
            while first < last:
                middle = (first + last) >> 1
                enough = (
                    _tied(
                        keys, ids, valid, threshold, middle, source, listed, count, is_listed, STREAMED, BLOCK
                    )
                    >= room
                )
                last = tl.where(enough, middle, last)
                first = tl.where(enough, first, middle + 1)
    return threshold, last


@triton.jit
def _value_of(key):
    """The float32 `[1]` behind a monotone key."""
    keys = tl.zeros((1,), tl.int32) + key
    return tl.where(keys < 0, keys ^ 0x7FFFFFFF, keys).to(tl.float32, bitcast=True)


@triton.jit
def stays(y, ids, valid, threshold, last, peak, min_p):
    keys = rising(y)
    ranked = (keys > threshold) | ((keys == threshold) & (ids <= last))
    return valid & ranked & (tl.exp(y - peak) >= min_p)


@triton.jit
def draw_kept(
    y, ids, valid, source, listed, count, is_listed, key, threshold, last, peak, min_p,
    SCALE: tl.constexpr, STREAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(token, mass kept): the draw among the candidates that stay."""
    kept = stays(y, ids, valid, threshold, last, peak, min_p)
    weight = tl.where(kept, masses(y, peak, SCALE), 0)
    best, token = _scores(y, ids, kept, key), ids
    if STREAMED:
        start = BLOCK
        while start < count:
            more_y, more_ids, more = more_candidates(source, listed, start, count, is_listed, BLOCK)
            kept = stays(more_y, more_ids, more, threshold, last, peak, min_p)
            weight += tl.where(kept, masses(more_y, peak, SCALE), 0)
            score = _scores(more_y, more_ids, kept, key)
            wins = (score > best) | ((score == best) & (more_ids < token))
            best, token = tl.where(wins, score, best), tl.where(wins, more_ids, token)
            start += BLOCK
    _, drawn = _best(best, token)
    return drawn, tl.sum(weight)


@triton.jit
def _scores(y, ids, kept, key):
    """Log-probability plus noise; -inf for what is not kept."""
    return tl.where(kept & (y == y), y - negative_gumbel(key, ids), float("-inf"))


@triton.jit
def _best(score, ids):
    """The highest score, and the lowest id that has it. Nothing that was kept scores -inf."""
    best = tl.max(score)
    return best, tl.min(tl.where((score == best) & (score > float("-inf")), ids, _NO_ID))


@triton.jit
def best_score(y, ids, kept, key):
    """Highest log-probability plus noise, and the lowest id that has it."""
    return _best(_scores(y, ids, kept, key), ids)


@triton.jit
def _next_best(keys, ids, valid, key, last):
    """The best candidate behind (key, last) in the order of value, then id."""
    behind = valid & ((keys < key) | ((keys == key) & (ids > last)))
    best = tl.max(tl.where(behind, keys, _LOWEST))
    return best, tl.min(tl.where(behind & (keys == best), ids, _NO_ID))


@triton.jit
def report_best(
    y, ids, valid, source, listed, count, is_listed, threshold, last, min_p, peak, log_total, top, top_ids,
    ALTERNATIVES: tl.constexpr, STREAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the best tokens and their log-probabilities, -inf for those that filters cut."""
    keys = rising(y)
    before, before_id = tl.full((), 2147483647, tl.int32), tl.full((), 2147483647, tl.int32)
    for place in range(ALTERNATIVES):
        best, token = _next_best(keys, ids, valid, before, before_id)
        if STREAMED:
            start = BLOCK
            while start < count:
                more_y, more_ids, more = more_candidates(source, listed, start, count, is_listed, BLOCK)
                other, other_id = _next_best(rising(more_y), more_ids, more, before, before_id)
                wins = (other > best) | ((other == best) & (other_id < token))
                best, token = tl.where(wins, other, best), tl.where(wins, other_id, token)
                start += BLOCK
        value = tl.max(tl.where(token < _NO_ID, _value_of(best), float("-inf")))
        kept = tl.max(
            stays(_value_of(best), token, token < _NO_ID, threshold, last, peak, min_p).to(tl.int32)
        )
        logprob = tl.where(kept > 0, value - peak - log_total, float("-inf"))
        tl.store(top + place, logprob)
        tl.store(top_ids + place, tl.where(token < _NO_ID, token, -1).to(tl.int64))
        before, before_id = best, token


@triton.jit
def report_candidates(
    y, ids, valid, source, listed, count, is_listed, threshold, last, min_p, peak, weight, token, drawn,
    program, SCALE: tl.constexpr, ALTERNATIVES: tl.constexpr, STREAMED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write the log-probabilities of a row whose kept tokens have the mass `weight`."""
    log_total = tl.log(tl.maximum(weight, 1).to(tl.float32) * (0.5**SCALE))
    tl.store(drawn.logprobs + program, tl.load(source + token) - peak - log_total)
    if ALTERNATIVES > 0:
        report_best(
            y, ids, valid, source, listed, count, is_listed, threshold, last, min_p, peak, log_total,
            drawn.top_logprobs + program * ALTERNATIVES, drawn.top_tokens + program * ALTERNATIVES,
            ALTERNATIVES, STREAMED, BLOCK,
        )  # fmt: skip
