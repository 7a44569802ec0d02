"""The earliest deadline among live sequences.

A heap with lazy removal. Sequences that end early leave entries behind; they are swept when they outnumber
the living, so that a million short requests with a deadline of an hour do not cost an hour of memory.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

_SWEEP_FROM = 64
"""Dead entries that are never worth a sweep."""


class Deadlines:
    """(deadline, key) of live sequences; at most one per key."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._live: set[int] = set()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, key: int, deadline: float | None) -> None:
        """Watches a deadline; None is none."""
        if deadline is not None:
            self._live.add(key)
            heappush(self._heap, (deadline, key))

    def discard(self, key: int) -> None:
        """The sequence has ended."""
        self._live.discard(key)
        if len(self._heap) > 2 * len(self._live) + _SWEEP_FROM:
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapify(self._heap)

    def next(self) -> float | None:
        """The earliest deadline, None without one."""
        while self._heap and self._heap[0][1] not in self._live:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> list[int]:
        """Keys whose deadline is not after `now`, earliest first; they are watched no longer."""
        keys = []
        while (deadline := self.next()) is not None and deadline <= now:
            key = heappop(self._heap)[1]
            self._live.remove(key)
            keys.append(key)
        return keys
