"""Which decode steps have graphs, and which graphs serve a step.

A graph fixes how many rows and sequences it computes. One per possible size would take minutes to capture and
gigabytes to keep; too few make a small step pay for a large one. So sizes are geometric: a step takes the
smallest that holds it and fills the rest with placeholders, sequences of one row in the scratch slot.

Rows and sequences are separate, since a device that deals rows by confidence gives some sequences few: a
forward has a size in rows, whosever they are, and a sampling, which drafts a block for each sequence, has one
in sequences.
"""

from __future__ import annotations

from bisect import bisect_left

_EXACT = (1, 2, 4, 8)
"""Sequences up to here double; from here on there is a size half-way between."""
_FEWEST_COLUMNS = 4
_COLUMN_RATIO = 8


class GraphSizes:
    """Sizes, ascending. `reach` is K, the most rows of a sequence."""

    def __init__(self, largest: int, reach: int, columns: int) -> None:
        self.reach = reach
        self.sequences = sequence_sizes(largest)
        self.rows = sorted({count * each for count in self.sequences for each in _rows_each(reach)})
        self.columns = column_sizes(columns)

    def sequences_for(self, sequences: int) -> int | None:
        """The smallest size that holds so many; None beyond the largest."""
        return _smallest(self.sequences, sequences)

    def rows_for(self, rows: int) -> int | None:
        return _smallest(self.rows, rows)

    def columns_for(self, columns: int) -> int:
        return self.columns[bisect_left(self.columns, columns)]


def sequence_sizes(largest: int) -> list[int]:
    """Ascending, ending in `largest`: 1, 2, 4, 8, 12, 16, 24, 32, 48, ..."""
    sizes, size = [each for each in _EXACT if each < largest], _EXACT[-1]
    while size < largest:
        sizes += [each for each in (size + size // 2, 2 * size) if each < largest]
        size *= 2
    return [*sizes, largest]


def column_sizes(columns: int) -> list[int]:
    """Ascending, ending in `columns`: a short context must not be read as a long one."""
    sizes, size = [], _FEWEST_COLUMNS
    while size * 2 <= columns:
        sizes.append(size)
        size *= _COLUMN_RATIO
    return [*sizes, columns]


def _rows_each(reach: int) -> list[int]:
    """1, 2, 4, ... below K, and K, which fits a step that verifies everything exactly."""
    each, rows = 1, [reach]
    while each < reach:
        rows.append(each)
        each *= 2
    return rows


def _smallest(sizes: list[int], wanted: int) -> int | None:
    place = bisect_left(sizes, wanted)
    return sizes[place] if place < len(sizes) else None
