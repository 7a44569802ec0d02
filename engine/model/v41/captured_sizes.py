"""Which decode steps have a graph, and which graph serves a step.

A graph fixes the number of sequences, of rows and of table columns. One per possible size would take minutes
to capture and gigabytes to keep; too few make a small step pay for a large one. So sizes are geometric: a
step takes the smallest that holds it and fills the rest with placeholders, sequences of the scratch slot.

A step's rows and its sequences are separate: a device that deals rows by confidence gives fewer than K to
each. So a size is (sequences, rows), and a step of b sequences and n rows fits when placeholders, of at most
K rows each, can take what is left: `sequences >= b + ceil((rows - n) / K)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

_EXACT = (1, 2, 4, 8)
"""Sequences up to here double; from here on there is a size half-way between."""
_FEWEST_COLUMNS = 4
_COLUMN_RATIO = 4


@dataclass(frozen=True, order=True)
class GraphSize:
    """What a decode graph is fixed to, but for its columns."""

    rows: int
    sequences: int


def sequence_sizes(largest: int) -> list[int]:
    """Ascending, ending in `largest`: 1, 2, 4, 8, 12, 16, 24, 32, 48, ..."""
    sizes, size = [each for each in _EXACT if each < largest], _EXACT[-1]
    while size < largest:
        sizes += [each for each in (size + size // 2, 2 * size) if each < largest]
        size *= 2
    return [*sizes, largest] if largest else []


def column_sizes(columns: int) -> list[int]:
    """Ascending, ending in `columns`: a short context must not be read as a long one."""
    sizes, size = [], _FEWEST_COLUMNS
    while size * 2 <= columns:
        sizes.append(size)
        size *= _COLUMN_RATIO
    return [*sizes, columns]


class GraphSizes:
    """The sizes of one runner. `reach` is K, the most rows of a sequence."""

    def __init__(self, largest: int, reach: int, columns: int, *, dealt: bool = False) -> None:
        """`dealt`: steps may give their sequences fewer than K rows."""
        self.reach = reach
        counts = sequence_sizes(largest)
        steps = {GraphSize(count * reach, count) for count in counts}
        if dealt:
            steps |= {dealt_size(count, rows, reach) for count in counts for rows in _fewer_rows(reach)}
        self.steps = sorted(steps)
        self.columns = column_sizes(columns)
        self._best = lru_cache(maxsize=4096)(self._choose)

    def choose(self, sequences: int, rows: int) -> GraphSize | None:
        """The smallest size that holds a step; None beyond the largest."""
        return self._best(sequences, rows)

    def choose_columns(self, needed: int) -> int:
        return next(size for size in self.columns if size >= needed)

    @property
    def most_sequences(self) -> int:
        return max(size.sequences for size in self.steps)

    def _choose(self, sequences: int, rows: int) -> GraphSize | None:
        for size in self.steps:
            if size.rows >= rows and size.sequences >= sequences + -(-(size.rows - rows) // self.reach):
                return size
        return None


def _fewer_rows(reach: int) -> list[int]:
    """Rows a sequence below K, geometric: 1, 2, 4, ..."""
    rows, fewer = 1, []
    while rows < reach:
        fewer.append(rows)
        rows *= 2
    return fewer


def dealt_size(sequences: int, rows_each: int, reach: int) -> GraphSize:
    """Rows for so many sequences, and placeholders for half of the rows: the next smaller size has half."""
    rows = sequences * rows_each
    return GraphSize(rows, sequences + -(-rows // (2 * reach)))
