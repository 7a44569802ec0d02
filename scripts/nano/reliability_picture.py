"""The reliability diagram: accepted share over confidence, a panel a place, one curve a sign of certainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .calibration import Bools, Floats, Judgements, Line, calibrated, calibration_error, chances, reliability

_RAW, _COLOURS = "#b8b8b8", {"head": "#b8860b", "peak": "#1f5fa8"}
_LARGEST = 90.0  # points squared, of the fullest bin


def draw(judged: Mapping[str, Judgements], lines: Mapping[str, Sequence[Line]], path: Path) -> None:
    """PNG, or what the file's ending says. Needs matplotlib, which is the extra `bench`."""
    from matplotlib.figure import Figure

    places = len(next(iter(lines.values())))
    figure = Figure(figsize=(2.9 * places, 3.7), dpi=110)
    for place in range(places):
        axes: Any = figure.add_subplot(1, places, place + 1)
        axes.plot((0, 1), (0, 1), color="#999", linewidth=0.8, linestyle="--")
        head = judged["head"].at(place)
        _curve(axes, "head as trained", chances(head.raw), head.accepted, _RAW)
        for sign, colour in _COLOURS.items():
            mine = judged[sign].at(place)
            _curve(axes, f"{sign} calibrated", calibrated(mine, lines[sign]), mine.accepted, colour)
        axes.set_title(f"draft {place + 1} of {places}, {head.raw.size:,} judged", fontsize=9)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        axes.tick_params(labelsize=8)
        axes.set_xlabel("confidence", fontsize=8)
        if place == 0:
            axes.set_ylabel("accepted", fontsize=8)
        axes.legend(fontsize=6.5, loc="lower right", frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def _curve(axes: Any, name: str, said: Floats, accepted: Bools, colour: str) -> None:
    bins = reliability(said, accepted)
    x, y = [b.said for b in bins], [b.happened for b in bins]
    counts = np.array([b.count for b in bins])
    label = f"{name}: ECE {calibration_error(said, accepted):.3f}"
    axes.plot(x, y, color=colour, linewidth=1.3, label=label)
    sizes = np.maximum(6.0, _LARGEST * counts / counts.max())
    axes.scatter(x, y, s=sizes, color=colour, linewidths=0, alpha=0.75)
