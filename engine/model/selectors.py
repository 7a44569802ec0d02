"""Selects the rows of slot-indexed arrays that a step touches, as cheaply as numpy allows.

Slots are handed out lowest first, so the slots of a full batch are neighbours and a slice selects them: views
instead of copies, and no index to convert. Other batches need indices of the machine's own width; int32
indices would be converted by every single access. Steady decode repeats one layout, so the selector of the
last layout is remembered.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .runner import BatchLayout, Int32s

Rows = npt.NDArray[np.intp] | slice


def rows_of(slots: Int32s) -> Rows:
    """The cheapest selector of these slots, in this order."""
    if not slots.size:
        return slice(0, 0)
    first, last = int(slots[0]), int(slots[-1])
    if last == first + slots.size - 1 and bool((np.diff(slots) == 1).all()):
        return slice(first, last + 1)
    return slots.astype(np.intp)


class Selector:
    """The rows of a layout, and the same as indices."""

    __slots__ = ("_indices", "_rows", "_slots")

    def __init__(self) -> None:
        self._slots: Int32s | None = None
        self._rows: Rows = slice(0, 0)
        self._indices: npt.NDArray[np.intp] = np.empty(0, dtype=np.intp)

    def rows(self, layout: BatchLayout) -> Rows:
        if layout.slots is not self._slots:  # layouts that differ in drafts only share their slots
            self._slots = layout.slots
            self._rows = rows_of(layout.slots)
            self._indices = layout.slots.astype(np.intp)
        return self._rows

    def indices(self, layout: BatchLayout) -> npt.NDArray[np.intp]:
        self.rows(layout)
        return self._indices
