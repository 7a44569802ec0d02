"""Large vocabularies: a row is split over many programs, which agree on its candidates in six launches.

Scan: edits, the best token of every tile, the maxima of groups of tokens. Rank: a program a row combines the
tiles, which ends greedy and unfiltered rows, and sorts the group maxima of the others. Weigh: how many tokens
lie above eight of these maxima and what mass they hold. Collect: above the highest maximum that surely
keeps all that filters could keep and reports could show, tokens become candidates. Finish: a program a row
decides among its candidates as `sampling_select.py` describes, one form of it for few and one for many.

The levels are maxima of the row itself, so they fit every scale of logits, and a level of rank r has at least
r tokens above it and not many more. Rejected: one program a row from start to end (0.5 MB through one
multiprocessor, again for each of 32 steps of a bisection). A row with more candidates than room is decided
from the whole vocabulary, to the same result: thresholds are exact, however many candidates came along.

Rows leave a launch at once where they have no work in it; tiles are as many however many rows there are, so a
row's result does not depend on them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .sampling_edits import FILTER, PROCESSED, RANDOM, edited, sequence_rows
from .sampling_noise import rising, row_key
from .sampling_rows import likeliest, write_nothing
from .sampling_select import (
    best_score,
    draw_kept,
    more_candidates,
    report_candidates,
    threshold_of,
)

_NO_ID = tl.constexpr(2147483647)
LEVELS = 8
_LEVELS = tl.constexpr(LEVELS)
_ONE_BY_ONE = tl.constexpr(16)
"""So few candidates of a tile find their places without a prefix sum."""
_MARGIN = tl.constexpr(1.00001)
"""By how much a level's float mass must exceed the limit: its sum is that exact at least."""


@triton.jit
def _asked(tables, slot, work, job, ALTERNATIVES: tl.constexpr):
    """Whether a row has job 0 (its filters, or a report of what it draws from) or 1 (the model's own)."""
    reports = False
    if ALTERNATIVES >= 0:
        reports = tl.load(tables.logprobs + slot) >= 0
    processed = reports & ((work & PROCESSED) != 0)
    return tl.where(job == 0, ((work & FILTER) != 0) | processed, reports & ((work & PROCESSED) == 0))


@triton.jit(do_not_specialize=["decodes", "first_prompt_row", "first_sequence", "first_place"])
def scan_tiles(
    logits, sequences, decodes, first_prompt_row, first_sequence, first_place, drafts, tables, bits, scratch,
    parts, groups, VOCAB: tl.constexpr, PLACES: tl.constexpr, DRAFTS: tl.constexpr, HAS_BITS: tl.constexpr,
    ALTERNATIVES: tl.constexpr, ALLOWED_TILE: tl.constexpr, REACH: tl.constexpr, GROUP: tl.constexpr,
    GROUPS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: rows, tiles."""
    program, tile, tiles = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row, active, slot, output = sequence_rows(
        sequences, decodes, first_prompt_row, first_sequence + program // PLACES, program % PLACES
    )
    if active:
        ids = tile * BLOCK + tl.arange(0, BLOCK)
        inside = ids < VOCAB
        raw = tl.load(logits + row * VOCAB + ids, mask=inside, other=float("-inf"))
        work = tl.load(tables.work + slot)
        output += first_place - tl.load(tables.origin + slot)
        group = groups + program * 2 * GROUPS + tile * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
        if _asked(tables, slot, work, 1, ALTERNATIVES):
            tl.store(group + GROUPS, _group_maxima(raw, GROUP, BLOCK))
        own = scratch + program.to(tl.int64) * VOCAB
        x = edited(
            raw, ids, tile * BLOCK, row, slot, output, program % PLACES + first_place, work, tables, drafts,
            bits, own, VOCAB, DRAFTS, HAS_BITS, BLOCK, ALLOWED_TILE, REACH,
        )  # fmt: skip
        peak, token, _ = likeliest(x, ids)
        broken = tl.max(((x != x) | (x == float("inf"))).to(tl.int32)) > 0
        at = program * tiles + tile
        tl.store(parts.peak + at, tl.where(broken, float("inf"), peak))
        tl.store(parts.token + at, token)
        y = x
        if (work & RANDOM) != 0:
            y = tl.div_rn(x, tl.load(tables.temperature + slot))
            if (work & FILTER) == 0:
                key = row_key(tl.load(tables.seed + slot), tl.load(tables.choice + slot), output)
                score, candidate = best_score(y, ids, inside, key)
                tl.store(parts.score + at, score)
                tl.store(parts.candidate + at, candidate)
        if _asked(tables, slot, work, 0, ALTERNATIVES):
            tl.store(own + ids, y, mask=inside)
            tl.store(group, _group_maxima(y, GROUP, BLOCK))


@triton.jit
def _group_maxima(y, GROUP: tl.constexpr, BLOCK: tl.constexpr):
    sane = tl.where(y == y, y, float("-inf"))
    return tl.max(tl.reshape(sane, (BLOCK // GROUP, GROUP)), axis=1)


@triton.jit(do_not_specialize=["decodes", "first_prompt_row", "first_sequence", "first_place"])
def rank_groups(
    sequences, decodes, first_prompt_row, first_sequence, first_place, tables, parts, groups, ordered, rows,
    drawn, VOCAB: tl.constexpr, PLACES: tl.constexpr, ALTERNATIVES: tl.constexpr, TILES: tl.constexpr,
    TILE_LANES: tl.constexpr, USED: tl.constexpr, GROUPS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Grid: rows. Tokens of rows whose tiles say all, and the levels of the others."""
    program = tl.program_id(0)
    row, active, slot, output = sequence_rows(
        sequences, decodes, first_prompt_row, first_sequence + program // PLACES, program % PLACES
    )
    jobs = 0
    if active:
        work = tl.load(tables.work + slot)
        tile = tl.arange(0, TILE_LANES)
        at, known = program * TILES + tile, tile < TILES
        peaks = tl.load(parts.peak + at, mask=known, other=float("-inf"))
        peak = tl.max(peaks)
        finite = tl.abs(peak) < float("inf")
        tokens = tl.load(parts.token + at, mask=known, other=_NO_ID)
        token = tl.min(tl.where(known & (peaks == peak), tokens, _NO_ID))
        if (work & RANDOM) != 0:
            peak = tl.div_rn(peak, tl.load(tables.temperature + slot))
            if (work & FILTER) == 0:
                scores = tl.load(parts.score + at, mask=known, other=float("-inf"))
                candidates = tl.load(parts.candidate + at, mask=known, other=_NO_ID)
                best = tl.max(scores)
                drawn_id = tl.min(tl.where(known & (scores == best), candidates, _NO_ID))
                token = tl.where(finite, drawn_id, token)
        token = tl.minimum(token, VOCAB - 1)
        tl.store(drawn.tokens + program, token.to(tl.int64))
        tl.store(drawn.finite + program, finite.to(tl.int8))
        tl.store(rows.peak + program * 2, peak)
        tl.store(rows.number + program * 2, 0)
        tl.store(rows.number + program * 2 + 1, 0)
        if finite & _asked(tables, slot, work, 0, ALTERNATIVES):
            jobs += 1
            _levels(groups, ordered, rows.levels, program * 2, USED, GROUPS, STEP)
        if finite & _asked(tables, slot, work, 1, ALTERNATIVES):
            jobs += 2
            group = tl.arange(0, GROUPS)
            own = groups + (program * 2 + 1) * GROUPS + group
            tl.store(
                rows.peak + program * 2 + 1, tl.max(tl.load(own, mask=group < USED, other=float("-inf")))
            )
            _levels(groups, ordered, rows.levels, program * 2 + 1, USED, GROUPS, STEP)
    else:
        write_nothing(drawn, program, ALTERNATIVES)
    tl.store(rows.work + program * 4, jobs)
    tl.store(rows.work + program * 4 + 1, slot)
    tl.store(rows.work + program * 4 + 2, row)
    tl.store(rows.work + program * 4 + 3, output + first_place)


@triton.jit
def _levels(groups, ordered, levels, at, USED: tl.constexpr, GROUPS: tl.constexpr, STEP: tl.constexpr):
    """Order the group maxima by counting how many are better, and take those of rank 2^(i * STEP) - 1."""
    group = tl.arange(0, GROUPS)
    own = tl.load(groups + at * GROUPS + group, mask=group < USED, other=float("-inf"))
    rank = tl.zeros((GROUPS,), tl.int32)
    piece: tl.constexpr = 64 if GROUPS > 64 else GROUPS
    for start in range(0, GROUPS, piece):
        other = start + tl.arange(0, piece)
        values = tl.load(groups + at * GROUPS + other, mask=other < USED, other=float("-inf"))
        better = (values[None, :] > own[:, None]) | (
            (values[None, :] == own[:, None]) & (other[None, :] < group[:, None])
        )
        rank += tl.sum(better.to(tl.int32), axis=1)
    tl.store(ordered + at * GROUPS + rank, own)
    tl.debug_barrier()
    level = tl.arange(0, _LEVELS)
    wanted = tl.minimum((tl.exp2(level.to(tl.float32) * STEP)).to(tl.int32) - 1, USED - 1)
    tl.store(levels + at * _LEVELS + level, tl.load(ordered + at * GROUPS + tl.maximum(wanted, 0)))


@triton.jit
def weigh_levels(
    logits, scratch, rows, weights, VOCAB: tl.constexpr, SCALE: tl.constexpr, BLOCK: tl.constexpr
):
    """Grid: rows, tiles, jobs. Tokens and mass of a tile above each level, summed lane by lane first."""
    program, tile, job = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if (tl.load(rows.work + program * 4) >> job) & 1 == 1:
        source = _source(logits, scratch, rows, program, job, VOCAB)
        at = program * 2 + job
        peak = tl.load(rows.peak + at)
        level = tl.arange(0, _LEVELS)
        levels = tl.load(rows.levels + at * _LEVELS + level)
        lanes: tl.constexpr = 256 if BLOCK > 256 else BLOCK // 4
        number = tl.zeros((_LEVELS, lanes), tl.int32)
        mass = tl.zeros((_LEVELS, lanes), tl.float32)
        total = tl.zeros((lanes,), tl.int64)
        pieces: tl.constexpr = 4  # in flight at a time: more of them would take registers from other rows
        for start in range(0, BLOCK, pieces * lanes):
            for piece in tl.static_range(pieces):
                ids = tile * BLOCK + start + piece * lanes + tl.arange(0, lanes)
                y = tl.load(source + ids, mask=ids < VOCAB, other=float("nan"))  # NaN is above no level
                shares = tl.exp(y - peak)
                shares = tl.where(shares == shares, shares, 0.0)
                above = y[None, :] >= levels[:, None]
                number += tl.where(above, 1, 0)
                mass += tl.where(above, shares[None, :], 0.0)
                total += (shares * (2.0**SCALE)).to(tl.int64)
        cell = at * tl.num_programs(1) + tile
        tl.store(weights.total + cell, tl.sum(total))
        tl.store(weights.number + cell * _LEVELS + level, tl.sum(number, axis=1))
        tl.store(weights.mass + cell * _LEVELS + level, tl.sum(mass, axis=1))


@triton.jit
def _source(logits, scratch, rows, program, job, VOCAB: tl.constexpr):
    """Where a job's distribution stands."""
    own = scratch + program.to(tl.int64) * VOCAB
    if job == 1:
        own = logits + tl.load(rows.work + program * 4 + 2) * VOCAB
    return own


@triton.jit
def _total(weights, at, TILES: tl.constexpr, TILE_LANES: tl.constexpr):
    tile = tl.arange(0, TILE_LANES)
    return tl.sum(tl.load(weights.total + at * TILES + tile, mask=tile < TILES, other=0))


@triton.jit
def _above_levels(rows, weights, at, TILES: tl.constexpr, TILE_LANES: tl.constexpr):
    """The levels of a row's job, how many tokens lie above each, and their mass."""
    tile, level = tl.arange(0, TILE_LANES), tl.arange(0, _LEVELS)
    cells = (at * TILES + tile[:, None]) * _LEVELS + level[None, :]
    known = (tile < TILES)[:, None] & (level >= 0)[None, :]
    number = tl.sum(tl.load(weights.number + cells, mask=known, other=0), axis=0)
    mass = tl.sum(tl.load(weights.mass + cells, mask=known, other=0.0), axis=0)
    return tl.load(rows.levels + at * _LEVELS + level), number, mass


@triton.jit
def _cut(
    tables, rows, weights, slot, work, at, job, SCALE: tl.constexpr, ALTERNATIVES: tl.constexpr,
    TILES: tl.constexpr, TILE_LANES: tl.constexpr,
):  # fmt: skip
    """The value from which on tokens are candidates."""
    levels, number, mass = _above_levels(rows, weights, at, TILES, TILE_LANES)
    shown = tl.full((), float("inf"), tl.float32)
    if ALTERNATIVES > 0:
        reports = tl.load(tables.logprobs + slot) >= 0
        if reports & (tl.where(job == 0, PROCESSED, 0) == (work & PROCESSED)):
            shown = tl.max(tl.where(number >= ALTERNATIVES, levels, float("-inf")))
    kept = tl.full((), float("inf"), tl.float32)
    if ((work & FILTER) != 0) & (job == 0):
        top_k, top_p = tl.load(tables.top_k + slot), tl.load(tables.top_p + slot)
        limit = top_p * _total(weights, at, TILES, TILE_LANES).to(tl.float32) * (0.5**SCALE) * _MARGIN
        many = tl.max(tl.where((top_k > 0) & (number >= top_k), levels, float("-inf")))
        heavy = tl.where(top_p < 1, tl.max(tl.where(mass > limit, levels, float("-inf"))), float("-inf"))
        share = tl.load(tables.min_p + slot)
        least = tl.load(rows.peak + at) + tl.log(tl.maximum(share, 1e-30)) - 0.001
        likely = tl.where(share > 0, least, float("-inf"))
        kept = tl.maximum(tl.maximum(many, heavy), likely)
    return tl.minimum(shown, kept)


@triton.jit
def collect_candidates(
    logits, tables, scratch, rows, weights, listed,
    VOCAB: tl.constexpr, ALTERNATIVES: tl.constexpr, SCALE: tl.constexpr, TILES: tl.constexpr,
    TILE_LANES: tl.constexpr, ROOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: rows, tiles, jobs. In no order: what follows has none."""
    program, tile, job = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if (tl.load(rows.work + program * 4) >> job) & 1 == 1:
        source = _source(logits, scratch, rows, program, job, VOCAB)
        ids = tile * BLOCK + tl.arange(0, BLOCK)
        y = tl.load(source + ids, mask=ids < VOCAB, other=float("-inf"))
        slot = tl.load(rows.work + program * 4 + 1)
        work = tl.load(tables.work + slot)
        at = program * 2 + job
        cut = _cut(tables, rows, weights, slot, work, at, job, SCALE, ALTERNATIVES, TILES, TILE_LANES)
        chosen = (ids < VOCAB) & (y >= cut)
        number = tl.sum(chosen.to(tl.int32))
        if number > _ONE_BY_ONE:
            first = tl.atomic_add(rows.number + at, number, sem="relaxed")
            place = first + tl.cumsum(chosen.to(tl.int32)) - 1
            tl.store(listed + at * ROOM + place, ids, mask=chosen & (place < ROOM))
        elif number > 0:
            place = tl.atomic_add(rows.number + at + tl.zeros_like(ids), 1, mask=chosen, sem="relaxed")
            tl.store(listed + at * ROOM + place, ids, mask=chosen & (place < ROOM))


@triton.jit
def _bracket(
    rows, weights, at, count, top_k, top_p, total, SCALE: tl.constexpr, TILES: tl.constexpr,
    TILE_LANES: tl.constexpr,
):  # fmt: skip
    """(low, high, candidates from low on, above high): what the levels already say of the threshold.

    A level's float mass says so only where it is clear of the limit.
    """
    levels, number, mass = _above_levels(rows, weights, at, TILES, TILE_LANES)
    keys = rising(levels).to(tl.int64)
    limit = top_p * total.to(tl.float32) * (0.5**SCALE)
    few, many = (top_k <= 0) | (number < top_k), (top_k > 0) & (number >= top_k)
    light, heavy = mass * _MARGIN <= limit, mass > limit * _MARGIN
    fits = few & tl.where(top_p < 1, light, few)
    fails = many | tl.where(top_p < 1, heavy, many)
    low = tl.max(tl.where(fails, keys, -2147483648))
    high = tl.min(tl.where(fits, keys - 1, tl.max(rising(tl.load(rows.peak + at + tl.arange(0, 1))))))
    reach = tl.min(tl.where(fails, number, count))
    return low, high, reach, tl.max(tl.where(fits, number, 0))


@triton.jit
def finish_rows(
    logits, tables, scratch, rows, weights, drawn, listed,
    VOCAB: tl.constexpr, ALTERNATIVES: tl.constexpr, SCALE: tl.constexpr, TILES: tl.constexpr,
    TILE_LANES: tl.constexpr, ROOM: tl.constexpr, FEW: tl.constexpr, MANY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid: rows. Filters, their draw, and the report, of rows with more or no more than FEW candidates."""
    program = tl.program_id(0)
    jobs, slot = tl.load(rows.work + program * 4), tl.load(rows.work + program * 4 + 1)
    count = tl.where((jobs & 1) == 1, tl.load(rows.number + program * 2), 0)
    if ((jobs & 1) == 1) & ((count > FEW) if MANY else (count <= FEW)):
        _finish_own(
            tables, scratch + program.to(tl.int64) * VOCAB, rows, weights, drawn, listed, program, slot,
            VOCAB, ALTERNATIVES, SCALE, TILES, TILE_LANES, ROOM, MANY, BLOCK,
        )  # fmt: skip
    if ALTERNATIVES >= 0:
        count = tl.maximum(count, tl.where((jobs & 2) == 2, tl.load(rows.number + program * 2 + 1), 0))
        if ((jobs & 2) == 2) & ((count > FEW) if MANY else (count <= FEW)):
            tl.debug_barrier()
            at = program * 2 + 1
            source = _source(logits, scratch, rows, program, 1, VOCAB)
            shown, is_listed = _candidates(rows, at, VOCAB, ROOM)
            own = listed + at * ROOM
            y, ids, valid = more_candidates(source, own, 0, shown, is_listed, BLOCK)
            report_candidates(
                y, ids, valid, source, own, shown, is_listed, tl.full((), -2147483648, tl.int32),
                tl.full((), VOCAB - 1, tl.int32), 0.0, tl.load(rows.peak + at),
                _total(weights, at, TILES, TILE_LANES), tl.load(drawn.tokens + program), drawn, program,
                SCALE, ALTERNATIVES, MANY, BLOCK,
            )  # fmt: skip


@triton.jit
def _finish_own(
    tables, source, rows, weights, drawn, listed, program, slot, VOCAB: tl.constexpr,
    ALTERNATIVES: tl.constexpr, SCALE: tl.constexpr, TILES: tl.constexpr, TILE_LANES: tl.constexpr,
    ROOM: tl.constexpr, MANY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Job 0: the distribution that the row draws from."""
    at = program * 2
    work = tl.load(tables.work + slot)
    token = tl.load(drawn.tokens + program).to(tl.int32)
    count, is_listed = _candidates(rows, at, VOCAB, ROOM)
    own = listed + at * ROOM
    y, ids, valid = more_candidates(source, own, 0, count, is_listed, BLOCK)
    peak, weight = tl.load(rows.peak + at), _total(weights, at, TILES, TILE_LANES)
    threshold, last = tl.full((), -2147483648, tl.int32), tl.full((), VOCAB - 1, tl.int32)
    min_p = tl.full((), 0.0, tl.float32)
    if (work & FILTER) != 0:
        top_k, top_p = tl.load(tables.top_k + slot).to(tl.int32), tl.load(tables.top_p + slot)
        min_p = tl.load(tables.min_p + slot)
        low, high, reach, over = _bracket(
            rows, weights, at, count, top_k, top_p, weight, SCALE, TILES, TILE_LANES
        )
        threshold, last = threshold_of(
            y, ids, valid, source, own, count, is_listed, peak, weight, top_k, top_p, low, high, reach, over,
            VOCAB, SCALE, MANY, BLOCK,
        )  # fmt: skip
        seed, choice = tl.load(tables.seed + slot), tl.load(tables.choice + slot)
        key = row_key(seed, choice, tl.load(rows.work + program * 4 + 3) - tl.load(tables.origin + slot))
        token, weight = draw_kept(
            y, ids, valid, source, own, count, is_listed, key, threshold, last, peak, min_p,
            SCALE, MANY, BLOCK,
        )  # fmt: skip
        token = tl.minimum(token, VOCAB - 1)
        tl.store(drawn.tokens + program, token.to(tl.int64))
    if ALTERNATIVES >= 0:  # noqa: SIM102
        if (tl.load(tables.logprobs + slot) >= 0) & ((work & PROCESSED) != 0):
            report_candidates(
                y, ids, valid, source, own, count, is_listed, threshold, last, min_p, peak, weight, token,
                drawn, program, SCALE, ALTERNATIVES, MANY, BLOCK,
            )  # fmt: skip


@triton.jit
def _candidates(rows, at, VOCAB: tl.constexpr, ROOM: tl.constexpr):
    """(how many, whether they are listed); all tokens where the list had no room."""
    count = tl.load(rows.number + at)
    return tl.where(count > ROOM, VOCAB, count), count <= ROOM
