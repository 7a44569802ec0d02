"""The reliability diagram: accepted share over confidence, a panel a place, before and after temperature."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .calibration import Judgements, calibration_error, chances, reliability

_BEFORE, _AFTER = "#b8860b", "#1f5fa8"
_LARGEST = 90.0  # points squared, of the fullest bin


def draw(judged: Judgements, temperatures: list[float], path: Path) -> None:
    """PNG, or what the file's ending says. Needs matplotlib, which is the extra `bench`."""
    from matplotlib.figure import Figure

    places = len(temperatures)
    figure = Figure(figsize=(2.75 * places, 3.5), dpi=110)
    for place, temperature in enumerate(temperatures):
        axes: Any = figure.add_subplot(1, places, place + 1)
        mine = judged.at(place)
        axes.plot((0, 1), (0, 1), color="#999", linewidth=0.8, linestyle="--")
        fullest = max((b.count for b in reliability(chances(mine.raw), mine.accepted)), default=1)
        for name, scale, colour in (("raw", 1.0, _BEFORE), ("fitted", temperature, _AFTER)):
            said = chances(mine.raw, scale)
            bins = reliability(said, mine.accepted)
            x, y = [b.said for b in bins], [b.happened for b in bins]
            error = calibration_error(said, mine.accepted)
            axes.plot(x, y, color=colour, linewidth=1.3, label=f"{name}: ECE {error:.3f}")
            sizes = [max(6.0, _LARGEST * b.count / fullest) for b in bins]
            axes.scatter(x, y, s=sizes, color=colour, linewidths=0, alpha=0.75)
        axes.set_title(f"draft {place + 1}   T = {temperature:.2f}   n = {len(mine.raw):,}", fontsize=9)
        axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), aspect="equal")
        axes.tick_params(labelsize=8)
        axes.set_xlabel("confidence", fontsize=8)
        if place == 0:
            axes.set_ylabel("accepted", fontsize=8)
        axes.legend(fontsize=7, loc="upper left", frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
