"""How many drafts, and whose: the worked example, brute force, causality, and the device's twin."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepahead.engine.model.v41 import dealing
from stepahead.engine.scheduling.cost_curve import CostCurve
from stepahead.engine.scheduling.verification import (
    WORTH_CHOOSING,
    Budget,
    best_budget,
    budget_for_targets,
    deal,
    even_split,
    survivals,
)

from .test_no_host_sync import ForbidValueReads

EXAMPLE = np.array([[0.9, 0.8, 0.5], [0.6, 0.5, 0.4], [0.95, 0.9, 0.9]], dtype=np.float32)
CURVE = CostCurve(rows=(4, 8, 12), seconds=(10.3e-3, 11.0e-3, 13.5e-3), padded=True)


def int32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_the_worked_example() -> None:
    """engine_spec 4: three sequences, three captured sizes."""
    survival = survivals(EXAMPLE)
    expected = [[0.9, 0.72, 0.36], [0.6, 0.3, 0.12], [0.95, 0.855, 0.7695]]
    assert survival == pytest.approx(np.array(expected), abs=1e-6)
    seconds = CURVE.table(12)[3:]
    gains = np.cumsum([3.0, *sorted(survival.ravel().tolist(), reverse=True)]) / (seconds * 1e3)
    table = [0.291, 0.384, 0.441, 0.519, 0.589, 0.654, 0.577, 0.604, 0.626, 0.635]
    assert gains == pytest.approx(np.array(table), abs=6e-4)
    budget = best_budget(survival, seconds)
    assert 3 + budget.spare == 8
    assert budget.seconds == pytest.approx(11.0e-3)
    assert deal(survival, int32(3, 3, 3), budget.spare).tolist() == [3, 1, 4]


@pytest.mark.parametrize(
    ("most", "spare", "rows"),
    [
        ((3, 3, 3), 0, [1, 1, 1]),
        ((3, 3, 3), 9, [4, 4, 4]),
        ((3, 3, 1), 5, [4, 2, 2]),
        ((0, 3, 0), 2, [1, 3, 1]),
        ((0, 0, 0), 0, [1, 1, 1]),
    ],
)
def test_caps_of_requests_are_kept(most: tuple[int, ...], spare: int, rows: list[int]) -> None:
    assert deal(survivals(EXAMPLE), int32(*most), spare).tolist() == rows


def test_ties_go_to_the_lower_flat_index() -> None:
    certain = np.ones((3, 2), dtype=np.float32)
    assert [deal(certain, int32(2, 2, 2), n).tolist() for n in range(4)] == [
        [1, 1, 1],
        [2, 1, 1],
        [3, 1, 1],
        [3, 2, 1],
    ]


@pytest.mark.parametrize(
    ("most", "spare", "rows"),
    [((3, 3, 3), 4, [3, 2, 2]), ((0, 3, 1), 3, [1, 3, 2]), ((5, 0), 5, [6, 1]), ((), 0, [])],
)
def test_an_even_split(most: tuple[int, ...], spare: int, rows: list[int]) -> None:
    assert even_split(int32(*most), spare).tolist() == rows


chance = st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0.0, 1.0, width=32))


@st.composite
def situations(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Survivals [b, D], caps [b], seconds by drafts."""
    count, drafts = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rows = st.lists(chance, min_size=drafts, max_size=drafts)
    confidences = draw(st.lists(rows, min_size=count, max_size=count))
    most = int32(*draw(st.lists(st.integers(0, drafts), min_size=count, max_size=count)))
    steps = st.lists(st.floats(0.0, 1.0), min_size=int(most.sum()), max_size=int(most.sum()))
    seconds = 0.25 + np.cumsum([0.0, *draw(steps)])
    return survivals(np.array(confidences, dtype=np.float32)), most, seconds


@given(situations())
@settings(max_examples=300, deadline=None)
def test_no_allowed_split_of_any_total_promises_more(
    situation: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    survival, most, seconds = situation
    allowed = np.where(np.arange(survival.shape[1]) < most[:, None], survival, 0).astype(np.float32)
    budget = best_budget(allowed, seconds)
    lengths = deal(survival, most, budget.spare)
    assert ((lengths >= 1) & (lengths <= 1 + most)).all()
    assert lengths.sum() == lengths.size + budget.spare

    def rate(drafts: tuple[int, ...]) -> float:
        tokens = sum(1.0 + float(row[:count].sum()) for row, count in zip(survival, drafts, strict=True))
        return tokens / float(seconds[sum(drafts)])

    best = max(rate(drafts) for drafts in product(*(range(cap + 1) for cap in most.tolist())))
    assert rate(tuple((lengths - 1).tolist())) >= best * (1.0 - 1e-5 - WORTH_CHOOSING)
    if budget.spare < most.sum():
        assert rate(tuple((lengths - 1).tolist())) == pytest.approx(best, rel=1e-5)


@given(situations(), st.data())
@settings(max_examples=300, deadline=None)
def test_the_device_deals_as_the_host(
    situation: tuple[np.ndarray, np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    survival, most, _ = situation
    spare = data.draw(st.integers(0, int(most.sum())))
    ours = deal(survival, most, spare)
    theirs = dealing.deal(torch.from_numpy(survival), torch.from_numpy(most), spare)
    assert theirs.tolist() == ours.tolist()


@given(situations(), st.data())
@settings(max_examples=300, deadline=None)
def test_a_later_confidence_never_decides_whether_an_earlier_draft_is_verified(
    situation: tuple[np.ndarray, np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    """The total is given; whatever stands behind draft i, the same drafts up to i are verified."""
    survival, most, _ = situation
    spare = data.draw(st.integers(0, int(most.sum())))
    sequence = data.draw(st.integers(0, survival.shape[0] - 1))
    place = data.draw(st.integers(0, survival.shape[1] - 1))
    others = np.array(
        data.draw(st.lists(chance, min_size=survival.shape[1], max_size=survival.shape[1])), dtype=np.float32
    )
    changed = survival.copy()
    changed[sequence, place + 1 :] = survival[sequence, place] * survivals(others[None])[0, place + 1 :]
    before, after = deal(survival, most, spare), deal(changed, most, spare)
    assert min(before[sequence] - 1, place + 1) == min(after[sequence] - 1, place + 1)


def test_the_device_deals_without_a_look_at_any_value() -> None:
    odds = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    most = torch.tensor([5, 0, 3, 5, 5, 1, 2])
    with ForbidValueReads():
        survival = dealing.survivals(odds)
        lengths = dealing.deal(survival, most, 9)
    assert lengths.tolist() == deal(survival.numpy(), most.numpy(), 9).tolist()


@pytest.mark.parametrize("sequences", [1, 8])
def test_all_drafts_unless_fewer_are_clearly_better(sequences: int) -> None:
    """A choice that gains nothing is not made; of equal rates that are clearly better, the fewest drafts."""
    survival = np.full((sequences, 2), 0.5, dtype=np.float32)
    most = 2 * sequences
    worth = np.concatenate([[sequences], np.full(most, 0.5)]).cumsum()

    def chosen(last: float) -> int:
        """Every total gives the same rate; all drafts take so much longer than that."""
        seconds = worth / sequences
        seconds[most] *= last
        return best_budget(survival, seconds).spare

    assert [chosen(last) for last in (1.0, 1.01, 1.03)] == [most, most, 0]


def test_many_drafts_are_judged_at_some_totals() -> None:
    survival = np.full((512, 5), 0.5, dtype=np.float32)
    cheap, dear = np.linspace(1.0, 1.1, 2561), np.linspace(1.0, 9.0, 2561)
    assert best_budget(survival, cheap).spare > 2500
    assert best_budget(survival, dear).spare == 0


def test_a_latency_target_takes_drafts_from_others() -> None:
    """Throughput wants one draft; one sequence needs the shortest step, another more drafts of its own."""
    survival = survivals(np.array([[0.9, 0.9], [0.02, 0.01]], dtype=np.float32))
    seconds = np.array([1.0, 1.05, 1.4, 1.5, 1.6])
    nobody = np.full(2, np.inf)
    free = best_budget(survival, seconds)
    assert budget_for_targets(survival, seconds, nobody).spare == free.spare
    assert free.spare == 1
    hurried = budget_for_targets(survival, seconds, np.array([np.inf, 1.04]))
    assert hurried.spare == 0
    eager = budget_for_targets(survival, seconds, np.array([0.53, np.inf]))
    assert eager.spare == 2
    assert eager.seconds / 2.71 <= 0.53
    hopeless = budget_for_targets(survival, seconds, np.array([0.1, np.inf]))
    assert hopeless == Budget(2, hopeless.tokens, 1.4)  # the least behind: 1.4 s for 2.71 tokens
