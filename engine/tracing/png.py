"""A drawing as PNG (or any format matplotlib knows by the file's ending), for documents and chats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepahead.engine.errors import StepaheadError

from .labels import placed_labels
from .picture import Picture

_INCHES, _DPI = 13.0, 110
_ROW_INCHES = 0.44
_CHARACTER = 0.075  # inches of an average letter at the size used


class MissingMatplotlibError(StepaheadError):
    """PNG needs matplotlib, which is an extra."""

    def __init__(self) -> None:
        super().__init__(
            "drawing a PNG needs matplotlib: pip install 'stepahead[bench]' (--html needs nothing)"
        )


def save_png(picture: Picture, path: Path) -> None:
    """Raises `MissingMatplotlibError`, or OSError."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingMatplotlibError from error
    rows = len(picture.rows)
    height = _ROW_INCHES * rows + 1.7
    figure = Figure(figsize=(_INCHES, height), dpi=_DPI)
    left, bottom, width = 0.115, 0.75 / height, 0.87
    axes: Any = figure.add_axes((left, bottom, width, _ROW_INCHES * rows / height))
    _draw(axes, picture)
    figure.text(0.012, 1 - 0.30 / height, picture.title, fontsize=13, fontweight="bold")
    figure.text(0.012, 1 - 0.55 / height, picture.subtitle, fontsize=9)
    legend = "A colour is a step. Shaded: the device waits (red: for the host, grey: for requests)."
    figure.text(0.012, 0.14 / height, legend, fontsize=9)
    figure.savefig(path)


def _draw(axes: Any, picture: Picture) -> None:
    rows, ms = len(picture.rows), 1e3
    axes.set_xlim(picture.begin / ms, picture.end / ms)
    axes.set_ylim(rows, 0)
    axes.set_yticks([row + 0.5 for row in range(rows)], picture.rows, fontsize=9)
    axes.set_xlabel("ms", fontsize=9)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    length_shown = picture.end - picture.begin
    for row in range(rows + 1):
        axes.axhline(row, color="#888", linewidth=1.2 if row == picture.host_rows else 0.3)
    for shade in picture.shades:
        axes.axvspan(shade.begin / ms, shade.end / ms, color=shade.colour, alpha=0.16, linewidth=0)
        room = len(shade.cause) * _CHARACTER / (_INCHES * 0.87) * length_shown
        if shade.end - shade.begin > room:
            middle = (shade.begin + shade.end) / 2 / ms
            axes.text(middle, -0.08, shade.cause, ha="center", va="bottom", fontsize=8, color=shade.colour)
    thinnest = length_shown / 900
    for bar in picture.bars:
        width = max(bar.end - bar.begin, thinnest) / ms
        edge = 0.6 if width * ms > 8 * thinnest else 0.0  # parts of one step, end to end, stay apart
        place = {"left": bar.begin / ms, "height": 0.7}
        axes.barh(bar.row + 0.5, width, **place, color=bar.colour, edgecolor="white", linewidth=edge)
    for mark in picture.marks:
        badge = {"boxstyle": "circle,pad=0.22", "facecolor": "#222", "edgecolor": "white"}
        point = (mark.at / ms, mark.row + 0.5)
        axes.annotate(
            mark.sign, point, (0, 13), textcoords="offset points", ha="center", va="center", color="white",
            fontsize=8, fontweight="bold", bbox=badge, zorder=5, annotation_clip=False,
        )  # fmt: skip
    for bar, left, inside in placed_labels(picture, _INCHES * 0.87, _CHARACTER):
        colour = "white" if inside else "#222"
        axes.text(left / ms, bar.row + 0.5, bar.label, va="center", fontsize=8, color=colour, clip_on=True)
