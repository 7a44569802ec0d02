"""Who waits, in which order they may start, and how long that takes.

Served by priority, then arrival; a preempted sequence keeps its place in that order and so comes first in its
class. One that does not fit is overtaken by those behind it, but only `max_bypass` times: then it closes the
queue behind itself until it starts. Rejected: strict order (one large prompt idles the device) and free
skipping (small prompts starve it for ever).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Iterator
from operator import attrgetter

from .sequence import Sequence

_HISTORY = 32
"""Admissions an estimate of the waiting time looks back to."""

_seniority: Callable[[Sequence], int] = attrgetter("seniority")


class AdmissionQueue:
    """The waiting sequences, oldest first."""

    def __init__(self, max_bypass: int) -> None:
        self._max_bypass = max_bypass
        self._waiting: list[Sequence] = []
        self._admissions: deque[float] = deque(maxlen=_HISTORY)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting)

    def push(self, sequence: Sequence) -> None:
        """Adds a sequence at its place, new or preempted."""
        insort(self._waiting, sequence, key=_seniority)

    def remove(self, sequence: Sequence) -> None:
        """Takes a waiting sequence out. Raises `KeyError` if it does not wait."""
        place = bisect_left(self._waiting, sequence.seniority, key=_seniority)
        if place == len(self._waiting) or self._waiting[place] is not sequence:
            raise KeyError(sequence.key)
        del self._waiting[place]

    def eligible(self, limit: int, ready: Callable[[Sequence], bool]) -> list[Sequence]:
        """At most `limit` sequences that may try to start now, in order.

        One that is not `ready` (it waits for its leader, or for a commit) is passed over at no cost. Behind
        one that may not fit come only as many as may still overtake it.
        """
        chosen: list[Sequence] = []
        allowance = limit
        for sequence in self._waiting:
            if not allowance:
                break
            if ready(sequence):
                chosen.append(sequence)
                allowance = min(allowance - 1, self._max_bypass - sequence.bypassed)
        return chosen

    def admit(self, candidates: list[Sequence], admitted: Collection[int], now: float) -> None:
        """Removes the candidates whose key is in `admitted`; the others were overtaken by those behind."""
        overtakers = 0
        for candidate in reversed(candidates):
            if candidate.key in admitted:
                overtakers += 1
                self.remove(candidate)
                candidate.bypassed = 0
                self._admissions.append(now)
            else:
                candidate.bypassed += overtakers

    def estimate_seconds(self, now: float) -> float | None:
        """Seconds until one more place is likely free, by the pace of recent admissions; None: no pace."""
        if len(self._admissions) < 2:
            return None
        return max(now - self._admissions[0], 0.0) / len(self._admissions)
