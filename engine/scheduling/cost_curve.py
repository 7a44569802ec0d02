"""What a step takes by its rows: measured when the engine opens, corrected while it runs.

Whether a draft pays depends on how much longer one more row makes the step, and that differs by two orders of
magnitude between a GPU whose captured step has room and a CPU that pays for every row. So it is measured: a
few sizes at start-up, with short contexts. What grows later (context, sampling, the host's share) is learned
from the steps themselves. All that is known of a step is how long it took as a whole, so the difference to
the curve is explained by a factor, since a machine that is busy is slow for every row, then by seconds a row
and by seconds a step at so many sequences. All three are medians, and medians of medians: one step that
waited for a page fault or a neighbour changes nothing.

Rejected: a curve of observed times alone, which knows nothing of sizes that were never tried, and these are
just the sizes to be judged; least squares, which follows every outlier.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from statistics import median

import msgspec
import numpy as np

from .verification import Float64s

MOST_TABLE_ROWS = 65536
"""Rows beyond which all steps are taken to cost the same per row: a table must not be as long as a budget."""

RECENT = 9
"""Steps of a kind whose median stands for it; and
ENOUGH of them before it does, and
STEPS_BETWEEN two corrections."""
ENOUGH = 5
STEPS_BETWEEN = 32
ENOUGH_PROBES = 2
"""Steps with drafts that say what drafting takes: a rest has few."""
MOST_KINDS = 256
_LEAST_SHARE = 0.1
_MOST_TAKEN = 0.75
"""Of the curve's own slope that a correction may take away: rows that seem free would all be computed."""
FORGOTTEN_AFTER = 5000
"""Steps after which a kind of step that did not occur again is not believed any more."""


class CostCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds by size, sizes ascending. `padded`: a step runs at the next listed size, and costs what it
    costs; otherwise costs between two sizes lie between theirs."""

    rows: tuple[int, ...]
    seconds: tuple[float, ...]  # forward and sampling of a decode step of so many rows
    sequences: tuple[int, ...] = ()
    draft_seconds: tuple[float, ...] = ()  # a draft pass for so many sequences
    padded: bool = False

    def __post_init__(self) -> None:
        for sizes, times in ((self.rows, self.seconds), (self.sequences, self.draft_seconds)):
            ascending = all(a < b for a, b in pairwise(sizes))
            good = len(sizes) == len(times) and ascending and all(size >= 1 for size in sizes)
            if not good or not all(math.isfinite(time) and time > 0 for time in times):
                raise ValueError(f"no cost curve: sizes {sizes}, seconds {times}")
        if not self.rows:
            raise ValueError("a cost curve has at least one size")

    def table(self, most_rows: int) -> Float64s:
        """Seconds of steps of 0, 1, ... `most_rows` rows; beyond the last size its cost a row goes on."""
        wanted = np.arange(most_rows + 1, dtype=np.float64)
        sizes, times = _never_falling(self.rows, self.seconds)
        if self.padded:
            index = np.minimum(np.searchsorted(sizes, wanted), sizes.size - 1)
            within: Float64s = times[index]
        else:
            within = np.interp(wanted, sizes, times)
        beyond = np.maximum(wanted - sizes[-1], 0.0)
        total: Float64s = within + beyond * _last_slope(sizes, times)
        return total

    def draft(self, sequences: int) -> float:
        """Seconds of a draft pass."""
        if not self.sequences:
            return 0.0
        sizes, times = _never_falling(self.sequences, self.draft_seconds)
        beyond = max(sequences - float(sizes[-1]), 0.0)
        return float(np.interp(sequences, sizes, times)) + beyond * _last_slope(sizes, times)


def _never_falling(sizes: tuple[int, ...], times: tuple[float, ...]) -> tuple[Float64s, Float64s]:
    """More rows never cost less: where a measurement says so, it is noise, and would be chased."""
    return np.array(sizes, dtype=np.float64), np.maximum.accumulate(np.array(times, dtype=np.float64))


def _last_slope(sizes: Float64s, times: Float64s) -> float:
    """Seconds a row between the last two sizes; of a single size, its mean."""
    if sizes.size == 1:
        return float(times[0] / sizes[0])
    return float((times[-1] - times[-2]) / (sizes[-1] - sizes[-2]))


_Kind = tuple[int, int, bool]
"""Of a step: sequences, rows, whether it drafted."""


class CostModel:
    """A curve with what running steps taught. Times are seconds of whole decode steps on the device."""

    def __init__(self, curve: CostCurve, most_rows: int) -> None:
        self.curve = curve
        self._most = min(most_rows, MOST_TABLE_ROWS)
        self._base = curve.table(self._most)
        self._table = self._base
        self._numbers: Float64s = np.arange(self._most + 1, dtype=np.float64)
        self.scale = 1.0  # of the curve
        self.slope = 0.0  # seconds a row on top of that
        self._overheads: dict[int, float] = {}  # by sequences
        self._overhead = 0.0  # where nothing is known of so many sequences
        self._drafts: dict[int, float] = {}  # what drafting for so many sequences takes: curve, or learned
        self._learned_drafts: dict[int, float] = {}
        self._seen: dict[_Kind, deque[float]] = {}
        self._last: dict[_Kind, int] = {}  # when it was seen last, in steps
        self._observed = 0
        self._asked: tuple[int, int, int, bool] | None = None
        self._answer = self._base
        self._known: dict[tuple[int, int, bool], float] = {}  # answers since something was learned

    def seconds(self, rows: int, spare: int, sequences: int, *, drafting: bool) -> Float64s:
        """Of steps of `rows`, `rows + 1`, ... `rows + spare` rows, `sequences` of which decode. Not to be
        written: the same question has the same answer until something is learned."""
        asked = (rows, spare, sequences, drafting)
        if asked != self._asked:
            self._answer, self._asked = self._seconds(rows, spare, sequences, drafting), asked
        return self._answer

    def _seconds(self, rows: int, spare: int, sequences: int, drafting: bool) -> Float64s:
        first = min(rows, self._most)
        last = min(rows + spare, self._most)
        times: Float64s = self._table[first : last + 1] + self._constant(sequences, drafting)
        if times[0] < self._least(first):
            times = np.maximum(times, _LEAST_SHARE * self._table[first : last + 1])
        if times.size < spare + 1:
            times = np.concatenate([times, np.full(spare + 1 - times.size, times[-1])])
        return times

    def step(self, rows: int, sequences: int, *, drafting: bool) -> float:
        """Of one step."""
        asked = (rows, sequences, drafting)
        known = self._known.get(asked)
        if known is None:
            at = min(rows, self._most)
            known = max(float(self._table[at]) + self._constant(sequences, drafting), self._least(at))
            if len(self._known) >= MOST_KINDS:
                self._known.clear()
            self._known[asked] = known
        return known

    def _least(self, rows: int) -> float:
        """A curve measured on a busy machine may be corrected far down, but never to nothing."""
        return _LEAST_SHARE * float(self._table[rows])

    def _constant(self, sequences: int, drafting: bool) -> float:
        overhead = self._overheads.get(sequences, self._overhead)
        if not drafting:
            return overhead
        learned = self._drafts.get(sequences)
        if learned is None:
            learned = self._drafts[sequences] = self.scale * self.curve.draft(sequences)
        return overhead + learned

    def knows_drafts(self, sequences: int) -> bool:
        """Whether steps have shown what drafting for so many sequences takes."""
        return sequences in self._learned_drafts

    def observe(self, rows: int, sequences: int, seconds: float, *, drafting: bool) -> None:
        """Learns from a step that did nothing but decode."""
        if rows > self._most:
            return
        about = min(_about(rows), self._most)
        kind = (sequences, about, drafting)
        seconds *= float(self._base[about] / self._base[rows])
        seen = self._seen.get(kind)
        if seen is None:
            if len(self._seen) >= MOST_KINDS:
                self._forget(min(self._last, key=self._last.__getitem__))
            seen = self._seen[kind] = deque(maxlen=RECENT)
        seen.append(seconds)
        self._observed += 1
        self._last[kind] = self._observed
        early = self._observed < 4 * STEPS_BETWEEN and self._observed % (STEPS_BETWEEN // 4) == 0
        if early or self._observed % STEPS_BETWEEN == 0:
            self.correct()

    def _forget(self, kind: _Kind) -> None:
        del self._seen[kind], self._last[kind]

    def correct(self) -> None:
        """Takes in what was observed.

        Steps without drafts say what a step costs, those with them what drafting adds to that.
        The slope is the median of the slopes between two sizes at one number of sequences; what is left there
        is its overhead.
        """
        for kind in [kind for kind, last in self._last.items() if self._observed - last > FORGOTTEN_AFTER]:
            self._forget(kind)
        typical = {kind: median(times) for kind, times in self._seen.items() if len(times) >= ENOUGH}
        if not typical:
            return
        plain = {kind: seconds for kind, seconds in typical.items() if not kind[2]}
        curve = {kind: self._curve_of(kind) for kind in typical}
        self.scale = median(seconds / curve[kind] for kind, seconds in (plain or typical).items())
        if not plain:
            self.scale = min(self.scale, 1.0)  # drafts are to blame until a plain step is seen
        residuals: dict[int, list[tuple[int, float]]] = {}
        left = {kind: seconds - self.scale * curve[kind] for kind, seconds in typical.items()}
        for kind, rest in left.items():
            residuals.setdefault(kind[0], []).append((kind[1], rest))
        if slopes := _slopes(residuals):
            usual = float(self._base[-1] - self._base[0]) / self._most
            self.slope = max(_weighted_median(slopes), -_MOST_TAKEN * self.scale * usual)
        overheads: dict[tuple[int, bool], list[float]] = {}
        for (sequences, rows, drafting), rest in left.items():
            overheads.setdefault((sequences, drafting), []).append(rest - self.slope * rows)
        self._overheads = {
            sequences: median(overheads[sequences, drafting])
            for sequences, drafting in sorted(overheads, reverse=True)
        }  # of both kinds the one without drafts stays
        self._overhead = median(self._overheads.values())
        self._table = np.maximum.accumulate(self.scale * self._base + self.slope * self._numbers)
        self._correct_drafts({sequences for sequences, _, _ in plain})
        self._asked = None
        self._known.clear()

    def _correct_drafts(self, known: set[int]) -> None:
        """Where steps without drafts are known, the rest of those with drafts is what drafting takes."""
        left: dict[int, list[float]] = {}
        for (sequences, rows, drafting), times in self._seen.items():
            if drafting and sequences in known:
                plain = float(self._table[rows]) + self._overheads[sequences]
                left.setdefault(sequences, []).extend(seconds - plain for seconds in times)
        for sequences, extra in left.items():
            if len(extra) >= ENOUGH_PROBES:
                self._learned_drafts[sequences] = max(median(extra), 0.0)
        self._drafts = dict(self._learned_drafts)  # the others anew, by the present scale

    def _curve_of(self, kind: _Kind) -> float:
        sequences, rows, drafting = kind
        return float(self._base[rows]) + (self.curve.draft(sequences) if drafting else 0.0)


def _about(rows: int) -> int:
    """In steps of about 6 %: totals that differ by a few are one kind, or no kind would come twice."""
    step = 1 << max(rows.bit_length() - 4, 0)
    return (rows + step // 2) // step * step


def _slopes(residuals: dict[int, list[tuple[int, float]]]) -> list[tuple[float, int]]:
    """Seconds a row above the curve, by numbers of sequences, each with the rows it was seen over.

    Where every step had one size, what it took too long is put down to its drafts: then a step without them
    looks short, will be tried, and the truth is known. Put down to the step itself, it would never be.
    """
    slopes = [
        ((right - left) / (more - fewer), more - fewer)
        for points in residuals.values()
        for (fewer, left), (more, right) in _neighbours(points)
    ]
    return slopes or [
        (rest / (rows - sequences), rows - sequences)
        for sequences, points in residuals.items()
        for rows, rest in points
        if rows > sequences
    ]


def _weighted_median(values: list[tuple[float, int]]) -> float:
    """Of (value, weight): two sizes that are close say little of what a row costs."""
    left = sum(weight for _, weight in values) / 2
    for value, weight in sorted(values):
        left -= weight
        if left <= 0:
            return value
    raise AssertionError("no values")


def _neighbours(points: list[tuple[int, float]]) -> list[tuple[tuple[int, float], tuple[int, float]]]:
    """Pairs of points with different rows."""
    ordered = sorted(points)
    pairs = pairwise(ordered)
    return [(one, other) for one, other in pairs if one[0] < other[0]]
