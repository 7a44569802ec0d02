"""The state slots that keep window states for later hits.

Invariant: a slot is granted to one holder at a time; which content it holds is the prefix index's business.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from stepahead.engine.model.runner import Int32s


class StateSlots:
    """Slots `first` to `first + count - 1`. Raises `ValueError` for what only a bug can ask."""

    def __init__(self, first: int, count: int) -> None:
        self.count = count
        self._range = range(first, first + count)
        self._free = list(reversed(self._range))
        self._taken: set[int] = set()

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> Int32s:
        """At most `count` slots, fewer when fewer are free."""
        ids = [self._free.pop() for _ in range(min(count, len(self._free)))]
        self._taken.update(ids)
        return np.array(ids, dtype=np.int32)

    def give(self, ids: Iterable[int]) -> None:
        """Returns slots that were taken."""
        for slot in map(int, ids):
            if slot not in self._taken:
                raise ValueError(f"state slot {slot} is returned but was not taken from {self._range}")
            self._taken.remove(slot)
            self._free.append(slot)
