"""What the policy makes of step times as they come: disturbed, by a machine that is busy at times, beside a
curve that was measured in a bad moment. Judged by what the best number of drafts would have given.

Times here are a device's own times the load of the moment, times noise, and now and then a hiccup; the pace
is counted in the device's own time, so that only choices matter.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from .test_speculation import DRAFTS, House

PHASE = 300
"""Steps of a phase. All count, those as well in which something is still being learned."""


class Machine(msgspec.Struct, frozen=True):
    """Seconds of a step, of a row, of a draft pass; and what the row was measured to take."""

    name: str
    base: float
    row: float
    draft: float
    measured_row: float


CPU_ONE = Machine("CPU, one user", 22e-3, 1e-3, 8e-3, 1e-3)
CPU_MANY = Machine("CPU, many users", 25e-3, 0.75e-3, 45e-3, 0.75e-3)
GPU = Machine("GPU", 0.75e-3, 1e-7, 0.17e-3, 1e-7)
CHEAP = Machine("CPU, rows measured as nearly free", 22e-3, 1e-3, 8e-3, 0.05e-3)
DEAR = Machine("CPU, rows measured as dear", 22e-3, 1e-3, 8e-3, 5e-3)


def steady(step: int) -> float:
    return 1.0


def phases(step: int) -> float:
    """Quiet, three neighbours, quiet, one neighbour."""
    return (1.0, 3.0, 1.0, 1.7)[step // PHASE % 4]


def flicker(step: int) -> float:
    """Neighbours come and go every few steps."""
    return 1.0 + 1.2 * (np.random.default_rng(step // 7).random() < 0.4)


def noisy(load: Callable[[int], float], seed: int) -> Callable[[int], float]:
    def disturbance(step: int) -> float:
        random = np.random.default_rng((seed, step))
        hiccup = 3.0 if random.random() < 0.03 else 1.0
        return load(step) * hiccup * float(np.exp(random.normal(0.0, 0.12)))

    return disturbance


def best_rate(machine: Machine, sequences: int, survival: np.ndarray) -> float:
    """Tokens a second of the device's own time with the best number of drafts for everybody, or none."""
    rates = [sequences / (machine.base + machine.row * sequences)]
    for drafts in range(DRAFTS + 1):
        tokens = sequences * (1.0 + survival[:drafts].sum())
        rates.append(tokens / (machine.base + machine.row * sequences * (1 + drafts) + machine.draft))
    return max(rates)


def expected_tokens(house: House, survival: np.ndarray) -> float:
    """Of every step so far, by what was verified and the true chances, so that luck plays no part."""
    sequences = house.members.count
    gains = np.concatenate([[0.0], np.cumsum(np.repeat(survival, sequences))])
    return sum(sequences + float(gains[spare]) for spare in house.spares)


@pytest.mark.parametrize("load", [steady, phases, flicker], ids=lambda load: load.__name__)
@pytest.mark.parametrize("confidence", [0.95, 0.7, 0.4])
@pytest.mark.parametrize(
    ("machine", "sequences"),
    [(CPU_ONE, 1), (CPU_MANY, 64), (GPU, 1), (GPU, 64), (CHEAP, 1), (CHEAP, 16), (DEAR, 1), (DEAR, 16)],
    ids=lambda value: value.name if isinstance(value, Machine) else str(value),
)
def test_choices_stay_near_the_best(
    machine: Machine, sequences: int, confidence: float, load: Callable[[int], float]
) -> None:
    house = House(
        sequences,
        base=machine.base,
        row=machine.row,
        draft=machine.draft,
        measured_row=machine.measured_row,
    )
    house.disturbance = noisy(load, seed=sequences)
    survival = confidence ** np.arange(1, DRAFTS + 1)
    best = best_rate(machine, sequences, survival)
    reached = []
    for _ in range(4):
        tokens, time = expected_tokens(house, survival), house.time
        house.run(PHASE, confidence)
        reached.append((expected_tokens(house, survival) - tokens) / (house.time - time) / best)
    assert min(reached) > 0.93, reached
    assert float(np.mean(reached[1:])) > 0.96, reached
