"""What a step takes by its rows: measured when the engine opens, corrected while it runs.

Whether a draft pays depends on how much longer one more row makes the step, and that differs by two orders of
magnitude between a GPU whose captured step has room and a CPU that pays for every row. So it is measured: a
few sizes at start-up, with short contexts. Two things are then learned from the steps themselves, and they
must not be mixed up:

* `load`, how much longer than expected the last few steps took, whatever their size: neighbours on the
  machine, its clock, longer contexts. It changes within seconds, and it changes no decision, for what counts
  is what sizes take beside each other.
* What sizes take beside each other: `slope`, seconds a row on top of the curve, and what drafting takes.
  These stay. They are learned from *contrasts* only: two steps one after the other, of the same sequences,
  that differ in their rows, or in whether they draft, and in nothing else. Their ratio is free of any load,
  but not of chance, so a measurement is corrected only as far as contrasts are sure to contradict it.

A size that is always the same shows no contrast, so `resting.py` leaves out a draft pass now and then.

Rejected: typical times of each size, from whenever they were seen. A size seen under load beside one seen in
a quiet minute looks dear, is avoided, and so is never seen in a quiet minute itself. Also least squares,
which follow every outlier.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np

from .verification import Float64s

MOST_TABLE_ROWS = 65536
"""Rows beyond which all steps are taken to cost the same per row: a table must not be as long as a budget."""

RECENT = 9
"""Steps whose median is the load."""
KEPT = 32
"""Contrasts of each kind that are remembered."""
ENOUGH = 2
"""Contrasts that teach, if they agree."""
CLEARLY_MORE = 1.5
"""By rows: two steps that are closer in size show only noise."""
KNOWN = 6
"""Contrasts from which what rows take is known well."""
LEARN_EVERY = 4
"""Contrasts between two corrections; the first ones teach at once."""
_MOST_TAKEN = 0.75
"""Of the curve's own slope that a correction may take away: rows that seem free would all be computed."""
_LESS_THAN_ROWS = 1.02
"""A step of twice the rows takes less than twice as long; without a bound, noise might say that a step of no
rows takes less than nothing."""


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


class Step(NamedTuple):
    """A step that did nothing but decode, and its time on the device."""

    rows: int
    sequences: int
    drafting: bool
    seconds: float


class CostModel:
    """A curve with what running steps taught. Times are seconds of whole decode steps on the device, as they
    were when the curve was measured; now they take `load` times as long."""

    def __init__(self, curve: CostCurve, most_rows: int) -> None:
        self.curve = curve
        self.load = 1.0
        self.slope = 0.0  # seconds a row on top of the curve
        self._most = min(most_rows, MOST_TABLE_ROWS)
        self._base = curve.table(self._most)
        self._table = self._base
        self._recent: deque[Step] = deque(maxlen=RECENT)
        self._loads: deque[float] = deque(maxlen=RECENT)  # of these
        self._connected = False  # the next step follows the newest of these
        self._by_rows: deque[tuple[Step, Step]] = deque(maxlen=KEPT)  # contrasts: fewer rows first
        self._by_drafts: dict[int, deque[tuple[Step, Step]]] = {}  # by about how many sequences: plain first
        self._contrasts = 0
        self._drafts: dict[int, float] = {}  # by sequences: what drafting takes, as far as it was asked
        self._asked: tuple[int, int, int, bool] | None = None
        self._answer = self._base

    def seconds(self, rows: int, spare: int, sequences: int, *, drafting: bool) -> Float64s:
        """Of steps of `rows`, `rows + 1`, ... `rows + spare` rows, `sequences` of which decode. Not to be
        written: the same question has the same answer until something is learned."""
        asked = (rows, spare, sequences, drafting)
        if asked != self._asked:
            self._answer, self._asked = self._seconds(rows, spare, sequences, drafting), asked
        return self._answer

    def _seconds(self, rows: int, spare: int, sequences: int, drafting: bool) -> Float64s:
        first = min(rows, self._most)
        times: Float64s = self._table[first : first + spare + 1]
        if times.size < spare + 1:
            times = np.concatenate([times, np.full(spare + 1 - times.size, times[-1])])
        return times + self._draft(sequences) if drafting else times

    def step(self, rows: int, sequences: int, *, drafting: bool) -> float:
        """Of one step."""
        forward = float(self._table[min(rows, self._most)])
        return forward + self._draft(sequences) if drafting else forward

    def _draft(self, sequences: int) -> float:
        known = self._drafts.get(sequences)
        if known is None:
            known = self._drafts[sequences] = self._typical_draft(sequences)
        return known

    def knows_drafts(self, sequences: int) -> bool:
        """Whether steps have shown what drafting for so many sequences takes."""
        return len(self._by_drafts.get(_about(sequences), ())) >= ENOUGH

    @property
    def knows_rows(self) -> bool:
        """Whether steps have shown well what rows take."""
        return len(self._by_rows) >= KNOWN

    # Learning.

    def observe(self, step: Step) -> None:
        """Learns from a step, which came right after the one observed before, unless `interrupt` says
        else."""
        if step.rows > self._most:
            self.interrupt()
            return
        if self._connected and self._note_contrast(self._recent[-1], step):
            self._contrasts += 1
            if self._contrasts < KEPT or self._contrasts % LEARN_EVERY == 0:
                self._correct()
        self._connected = True
        self._recent.append(step)
        self._loads.append(step.seconds / self._expected(step))
        self.load = median(self._loads)

    def interrupt(self) -> None:
        """A step came that says nothing of decoding."""
        self._connected = False

    def _note_contrast(self, before: Step, step: Step) -> bool:
        if before.sequences != step.sequences:
            return False
        if before.drafting == step.drafting:
            fewer, more = sorted((before, step))
            if more.rows < CLEARLY_MORE * fewer.rows:
                return False
            self._by_rows.append((fewer, more))
            return True
        if before.rows != step.rows:
            return False
        known = self._by_drafts.setdefault(_about(step.sequences), deque(maxlen=KEPT))
        known.append((before, step) if step.drafting else (step, before))
        return True

    def _correct(self) -> None:
        self.slope = self._typical_slope()
        numbers = np.arange(self._most + 1, dtype=np.float64)
        self._table = np.maximum.accumulate(self._base + self.slope * numbers)
        self._drafts.clear()
        self._asked = None
        self._loads = deque((step.seconds / self._expected(step) for step in self._recent), maxlen=RECENT)

    def _expected(self, step: Step) -> float:
        return self.step(step.rows, step.sequences, drafting=step.drafting)

    def _typical_slope(self) -> float:
        usual = float(self._base[-1] - self._base[0]) / self._most
        slopes = [self._slope_of(*pair) for pair in self._by_rows]
        return max(_surely(slopes, measured=0.0), -_MOST_TAKEN * usual)

    def _slope_of(self, fewer: Step, more: Step) -> float:
        """With which the model would have told the ratio of two steps. Whatever the load, both had it."""
        ratio = max(fewer.seconds / more.seconds, _LESS_THAN_ROWS * fewer.rows / more.rows)
        draft = self._draft(fewer.sequences) if fewer.drafting else 0.0
        one, other = float(self._base[fewer.rows]) + draft, float(self._base[more.rows]) + draft
        return (one - ratio * other) / (ratio * more.rows - fewer.rows)

    def _typical_draft(self, sequences: int) -> float:
        """Of what pairs of steps say, and what was measured."""
        measured, added = self.curve.draft(sequences), []
        for plain, drafted in self._by_drafts.get(_about(sequences), ()):
            added.append((drafted.seconds / plain.seconds - 1.0) * float(self._table[plain.rows]))
        return max(_surely(added, measured), 0.0)


def _about(number: int) -> int:
    """In steps of about 6 %: numbers that differ by a few are one kind, or no kind would come twice."""
    step = 1 << max(number.bit_length() - 4, 0)
    return (number + step // 2) // step * step


def _surely(values: list[float], measured: float) -> float:
    """The median of what `values` are drawn from, as near to `measured` as they leave likely: it lies within
    so many ranks of theirs as a fair coin strays. A few noisy values change nothing, two clear ones do."""
    count = len(values)
    if count < ENOUGH:
        return measured
    values.sort()
    spread = math.sqrt(count)
    least, most = values[int((count - spread) / 2)], values[math.ceil((count + spread) / 2) - 1]
    return min(max(measured, least), most)
