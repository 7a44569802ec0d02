"""Where the words of a drawing go: into their bar, else into the free room to its right, else nowhere."""

from __future__ import annotations

from collections.abc import Iterator

from .picture import Bar, Picture


def placed_labels(picture: Picture, width: float, character: float) -> Iterator[tuple[Bar, float, bool]]:
    """Bars whose label fits, with its left edge in microseconds and whether it lies inside of the bar.

    `width` of the drawing and `character` of an average letter are in the same unit.
    """
    unit = (picture.end - picture.begin) / width  # microseconds of one
    for row in range(len(picture.rows)):
        bars = sorted((bar for bar in picture.bars if bar.row == row), key=lambda bar: (bar.begin, -bar.end))
        free_from, said = picture.begin, ""
        for number, bar in enumerate(bars):
            if bar.label == said:
                continue  # served in portions: one label is enough
            room = len(bar.label) * character * unit
            nested = number + 1 < len(bars) and bars[number + 1].begin < bar.end
            if room < bar.end - bar.begin and not nested:
                yield bar, (bar.begin + bar.end - room) / 2, True
                free_from, said = bar.end, bar.label
                continue
            left = bar.end + character * unit / 2
            following = bars[number + 1].begin if number + 1 < len(bars) else picture.end
            if not nested and left >= free_from and left + room < following:
                yield bar, left, False
                free_from, said = left + room, bar.label
