"""How far a draft's confidence can be trusted, and the temperature per place that mends it.

The head was trained beside the draft block and learned to rank; what the scheduler multiplies into survival
chances must also be right on average. One temperature a place, `sigmoid(raw / T)`, is the published form. A
bias would fit a little better and has no place in the format: other engines would read such a checkpoint
wrongly, while a temperature only sharpens or flattens what they read.

Fitted by maximum likelihood of what the engine accepted: convex in 1/T, so one bisection finds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

SUREST = 60.0
"""Log-odds are clamped here, as in the engine."""
_COLDEST, _HOTTEST = 1 / 64, 64.0
_BINS = 10


@dataclass(frozen=True)
class Judgements:
    """Drafts that were verified while all before them had been accepted, n of them."""

    place: Ints  # [n]
    raw: Floats  # [n] confidence before temperature and sigmoid
    accepted: Bools  # [n]

    def at(self, place: int) -> Judgements:
        return self.only(self.place == place)

    def only(self, chosen: Bools) -> Judgements:
        return Judgements(self.place[chosen], self.raw[chosen], self.accepted[chosen])


@dataclass(frozen=True)
class Bin:
    """Drafts of similar confidence."""

    count: int
    said: float  # their mean confidence
    happened: float  # the share that was accepted


def chances(raw: Floats, temperature: float | Floats = 1.0) -> Floats:
    """Of acceptance, as the engine computes them."""
    return 1 / (1 + np.exp(-np.clip(raw / temperature, -SUREST, SUREST)))


def fit_temperature(raw: Floats, accepted: Bools) -> float:
    """The likeliest temperature, within bounds: where all were accepted, or none, there is no likeliest."""
    low, high = 1 / _HOTTEST, 1 / _COLDEST  # of the sharpness 1/T
    for _ in range(60):
        sharpness = (low + high) / 2
        if float((raw * (chances(raw, 1 / sharpness) - accepted)).sum()) > 0:
            high = sharpness
        else:
            low = sharpness
    return 2 / (low + high)


def fit(judged: Judgements, places: int) -> list[float]:
    """One temperature a place, rounded to what a file should say."""
    fitted = []
    for place in range(places):
        mine = judged.at(place)
        fitted.append(round(fit_temperature(mine.raw, mine.accepted), 3))
    return fitted


def reliability(said: Floats, accepted: Bools) -> list[Bin]:
    """Ten bins of equal width; empty ones are left out."""
    index = np.minimum((said * _BINS).astype(np.int64), _BINS - 1)
    bins = []
    for number in range(_BINS):
        mine = index == number
        if mine.any():
            bins.append(Bin(int(mine.sum()), float(said[mine].mean()), float(accepted[mine].mean())))
    return bins


def calibration_error(said: Floats, accepted: Bools) -> float:
    """Expected calibration error: how far apart both are, a bin weighing as many drafts as it holds."""
    bins = reliability(said, accepted)
    total = sum(b.count for b in bins)
    return sum(b.count * abs(b.said - b.happened) for b in bins) / total if total else 0.0


def place_temperatures(judged: Judgements, temperatures: list[float]) -> Floats:
    """Of each draft."""
    return np.array(temperatures)[judged.place]


def table(judged: Judgements, temperatures: list[float]) -> Iterator[str]:
    """Lines of a report: the error of every place before and after, then its bins after."""
    yield "place  drafts accepted      T   said  after     ECE   after"
    for place, temperature in enumerate(temperatures):
        mine = judged.at(place)
        before, after = chances(mine.raw), chances(mine.raw, temperature)
        yield (
            f"{place:>5} {len(mine.raw):>7} {mine.accepted.mean():>8.3f} {temperature:>6.3f} "
            f"{before.mean():>6.3f} {after.mean():>6.3f} {calibration_error(before, mine.accepted):>7.4f} "
            f"{calibration_error(after, mine.accepted):>7.4f}"
        )
    both = [chances(judged.raw), chances(judged.raw, place_temperatures(judged, temperatures))]
    errors = [calibration_error(said, judged.accepted) for said in both]
    yield f"  all {len(judged.raw):>7} {judged.accepted.mean():>8.3f} {'':>6} " + " ".join(
        [f"{said.mean():>6.3f}" for said in both] + [f"{error:>7.4f}" for error in errors]
    )
    for place, temperature in enumerate(temperatures):
        mine = judged.at(place)
        yield f"place {place}: drafts, confidence, accepted"
        for b in reliability(chances(mine.raw, temperature), mine.accepted):
            yield f"{b.count:>13} {b.said:>11.3f} {b.happened:>9.3f}"
