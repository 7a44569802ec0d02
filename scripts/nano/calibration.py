"""How far a draft's certainty can be trusted, and the numbers per place that turn it into a chance.

What the scheduler multiplies into survival chances must be right on average and tell good drafts from bad
ones. Two signs are judged here. The confidence head was trained beside the draft block; the published form of
its chance is `sigmoid(raw / T)`, one temperature a place. The peak is the log-odds of the likeliest token of
the distribution that the draft is drawn from; it was never trained to be a chance, so it gets an offset as
well: `sigmoid(scale * peak + offset)`.

Both are fitted by maximum likelihood of what the engine accepted, which is convex: in 1/T, and in the pair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

Line = tuple[float, float]
"""Scale and offset of a place's log-odds."""

SUREST = 60.0
"""Log-odds are clamped here, as in the engine."""
_COLDEST, _HOTTEST = 1 / 64, 64.0
_BINS = 10


@dataclass(frozen=True)
class Judgements:
    """Drafts that were verified while all before them had been accepted, n of them."""

    place: Ints  # [n]
    raw: Floats  # [n] log-odds, uncalibrated
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


def chances(log_odds: Floats) -> Floats:
    """As the engine computes them."""
    return 1 / (1 + np.exp(-np.clip(log_odds, -SUREST, SUREST)))


def fit_temperature(raw: Floats, accepted: Bools) -> float:
    """The likeliest temperature, within bounds: where all were accepted, or none, there is no likeliest."""
    low, high = 1 / _HOTTEST, 1 / _COLDEST  # of the sharpness 1/T
    for _ in range(60):
        sharpness = (low + high) / 2
        if float((raw * (chances(raw * sharpness) - accepted)).sum()) > 0:
            high = sharpness
        else:
            low = sharpness
    return 2 / (low + high)


def fit_line(raw: Floats, accepted: Bools) -> tuple[float, float]:
    """The likeliest scale and offset, by Newton's method; a grain of ridge keeps certainty finite."""
    inputs = np.stack([raw, np.ones_like(raw)], axis=1)
    line, ridge = np.array([1.0, 0.0]), 1e-3 * np.eye(2)
    for _ in range(30):
        said = chances(inputs @ line)
        slope = inputs.T @ (said - accepted) + ridge @ line
        curvature = (inputs * (said * (1 - said))[:, None]).T @ inputs + ridge
        line = line - np.linalg.solve(curvature, slope)
    return float(line[0]), float(line[1])


def fit_head(judged: Judgements, places: int) -> list[Line]:
    """A temperature a place, rounded to what a file should say."""
    by_place = [judged.at(place) for place in range(places)]
    return [(1 / round(fit_temperature(mine.raw, mine.accepted), 3), 0.0) for mine in by_place]


def fit_peak(judged: Judgements, places: int) -> list[Line]:
    """A scale and an offset a place, rounded likewise."""
    by_place = [fit_line(mine.raw, mine.accepted) for mine in map(judged.at, range(places))]
    return [(round(scale, 3), round(offset, 3)) for scale, offset in by_place]


def calibrated(judged: Judgements, lines: Sequence[Line]) -> Floats:
    """Chance of each draft."""
    line = np.array(lines)[judged.place]
    return chances(judged.raw * line[:, 0] + line[:, 1])


def discrimination(said: Floats, accepted: Bools) -> float:
    """Area under the ROC curve: how often an accepted draft was thought better of than a rejected one."""
    ranks = np.empty(said.size)
    ranks[np.argsort(said, kind="stable")] = np.arange(said.size)
    good = int(accepted.sum())
    pairs = good * (said.size - good)
    return float((ranks[accepted].sum() - good * (good - 1) / 2) / pairs) if pairs else float("nan")


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


def spared(raw_rounds_places: Floats, accepted: Ints, lines: Sequence[Line], kept: float = 0.99) -> float:
    """Share of drafts that need no verification if so much of the tokens per step is to be kept.

    Of whole rounds: log-odds of every draft, and how many were accepted. Drafts of least survival are left
    out, as adaptive verification does; one threshold over all rounds, which is found by bisection.
    """
    line = np.array(lines)
    survival = chances(raw_rounds_places * line[:, 0] + line[:, 1]).cumprod(axis=1)
    wanted = kept * (accepted.size + accepted.sum())
    thresholds = np.sort(survival, axis=None)
    low, high = 0, thresholds.size  # the threshold `low` keeps enough
    while high - low > 1:
        middle = (low + high) // 2
        verified = (survival >= thresholds[middle]).sum(axis=1)
        enough = accepted.size + np.minimum(accepted, verified).sum() >= wanted
        low, high = (middle, high) if enough else (low, middle)
    return float((survival < thresholds[low]).mean())


def table(judged: Judgements, lines: Sequence[Line]) -> Iterator[str]:
    """Lines of a report: errors of every place before and after, how well it tells, then its bins after."""
    yield "place  drafts accepted  scale offset   said  after     ECE   after     AUC"
    for place, (scale, offset) in enumerate(lines):
        mine = judged.at(place)
        yield f"{place:>5} {_errors(mine, lines, f'{scale:>6.3f} {offset:>6.3f}')}"
    yield f"  all {_errors(judged, lines, ' ' * 13)}"
    for place in range(len(lines)):
        mine = judged.at(place)
        yield f"place {place}: drafts, confidence, accepted"
        for b in reliability(calibrated(mine, lines), mine.accepted):
            yield f"{b.count:>13} {b.said:>11.3f} {b.happened:>9.3f}"


def _errors(judged: Judgements, lines: Sequence[Line], fitted: str) -> str:
    before, after, accepted = chances(judged.raw), calibrated(judged, lines), judged.accepted
    errors = calibration_error(before, accepted), calibration_error(after, accepted)
    return (
        f"{accepted.size:>7} {accepted.mean():>8.3f} {fitted} {before.mean():>6.3f} {after.mean():>6.3f} "
        f"{errors[0]:>7.4f} {errors[1]:>7.4f} {discrimination(after, accepted):>7.3f}"
    )
