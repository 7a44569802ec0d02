"""The policy: which rounds of confidences a plan sees, when drafting rests, and how it comes back."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stepahead.engine.model.runner import BatchLayout
from stepahead.engine.sampling.commit import StepCommit
from stepahead.engine.scheduling.cost_curve import CostCurve, CostModel
from stepahead.engine.scheduling.ledger import DECODE, Ledger
from stepahead.engine.scheduling.members import Members
from stepahead.engine.scheduling.resting import LONGEST_REST, PROBE, SHORTEST_REST, TRIAL
from stepahead.engine.scheduling.speculation import Speculation

from .core_driver import Setup

DRAFTS = 4


class House:
    """Decoding sequences, the policy, and a device whose steps take what `seconds` says."""

    def __init__(
        self,
        sequences: int,
        *,
        row: float = 1e-3,
        draft: float = 1e-3,
        base: float = 10e-3,
        measured_row: float | None = None,
    ) -> None:
        limits = Setup(draft_tokens=DRAFTS, slots=sequences, max_rows=sequences * (DRAFTS + 1)).limits()
        self.ledger = Ledger(limits)
        self.ledger.admissions[1:] = np.arange(1, sequences + 1)
        self.ledger.most_drafts[:] = DRAFTS
        self.ledger.phase[1:] = DECODE
        self.row, self.draft, self.base = row, draft, base
        most = sequences * (DRAFTS + 1)
        measured = row if measured_row is None else measured_row
        curve = CostCurve(
            rows=(1, most + 1),
            seconds=(base + measured, base + measured * (most + 1)),
            sequences=(1, most),
            draft_seconds=(draft, draft),
        )
        self.policy = Speculation(self.ledger, limits, CostModel(curve, most))
        self.members = Members(self.ledger, np.arange(1, sequences + 1, dtype=np.int32))
        self.step = 0
        self.random = np.random.default_rng(1)
        self.made: list[np.ndarray] = []  # confidences by step
        self.spares: list[int] = []
        self.drafted: list[bool] = []
        self.tokens = self.time = 0.0
        self.disturbance: Callable[[int], float] = lambda step: 1.0  # of the times of steps, by their number
        self._flying: list[tuple[BatchLayout, np.ndarray | None]] = []

    def keep(self, sequences: int) -> None:
        """Only so many still decode."""
        self.members = Members(self.ledger, np.arange(1, sequences + 1, dtype=np.int32))

    def run(self, steps: int, confidence: float | np.ndarray) -> None:
        """Plans ahead by one step; drafts are accepted as often as their confidence says."""
        for _ in range(steps):
            self.plan(confidence)
            if len(self._flying) > 1:
                self.commit()

    def plan(self, confidence: float | np.ndarray) -> int:
        policy, members = self.policy, self.members
        spare = policy.spare(members, 0, self.step)
        layout = members.layout(spare)
        drafts = policy.drafts(members, False)
        policy.planned(layout, drafts=drafts)
        made = np.full((members.count, DRAFTS), confidence, dtype=np.float32)
        self._flying.append((layout, made if drafts else None))
        self.spares.append(spare)
        self.drafted.append(drafts)
        self.step += 1
        return spare

    def commit(self) -> None:
        layout, made = self._flying.pop(0)
        drafted = layout.query_lengths - 1
        before = self.made[-1] if self.made else np.zeros((layout.slots.size, DRAFTS))
        right = self.random.random((layout.slots.size, DRAFTS)) < before[: layout.slots.size]
        held = right & (np.arange(DRAFTS) < drafted[:, None])
        accepted = np.cumprod(held, axis=1).sum(axis=1).astype(np.int32)
        seconds = self.base + self.row * layout.rows + (self.draft if made is not None else 0.0)
        self.tokens += float(accepted.sum()) + layout.slots.size
        self.time += seconds
        step = self.step - len(self._flying) - 1
        seconds *= self.disturbance(step)
        self.policy.committed(
            StepCommit(
                step=step,
                layout=layout,
                tokens=np.zeros((layout.slots.size, DRAFTS + 1), dtype=np.int32),
                counts=accepted + 1,
                advanced=accepted + 1,
                finish=np.zeros(layout.slots.size, dtype=np.int8),
                drafted=drafted,
                accepted=accepted,
                any_finish=False,
                confidences=made,
            ),
            seconds,
        )
        self.made.append(made if made is not None else np.zeros((layout.slots.size, DRAFTS)))

    @property
    def rate(self) -> float:
        return self.tokens / self.time

    def plain_rate(self, sequences: int) -> float:
        return sequences / (self.base + self.row * sequences)


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_plan_sees_confidences_of_two_steps_before_and_older(ahead: int) -> None:
    """`ahead` 1: without overlap the newest round is known when a step is planned, and must wait as well."""

    def totals(last: float) -> list[int]:
        house = House(3)
        for confidence in (0.9, 0.6, 0.3, 0.3, last):  # the fourth is a look
            house.plan(confidence)
            if len(house._flying) >= ahead:
                house.commit()
        while house._flying:
            house.commit()
        return [*house.spares, house.plan(0.5), house.plan(0.5)]

    high, low = totals(0.95), totals(0.05)
    assert high[:6] == low[:6], "the step right after a round knew its confidences"
    assert high[6] > low[6], "the step after that did not"


def test_without_costs_every_step_verifies_all_and_drafts() -> None:
    house = House(2)
    house.policy = Speculation(house.ledger, house.ledger.limits, None)
    assert not house.policy.adaptive
    house.run(5, 0.01)
    assert house.spares == [2 * DRAFTS] * 5
    assert all(house.drafted)


def test_drafts_that_pay_are_verified_and_others_not() -> None:
    sure, unsure = House(4), House(4, row=3e-3)
    sure.run(120, 0.95)
    unsure.run(40, 0.4)
    assert set(sure.spares[4:]) == {4 * DRAFTS, 0}, "all, and none behind a look"
    assert sure.spares[4:].count(0) <= 5
    assert sure.rate > 2 * sure.plain_rate(4)
    assert max(unsure.spares[4:]) < 4 * DRAFTS


@pytest.mark.parametrize("sequences", [1, 8, 64])
@pytest.mark.parametrize("confidence", [0.02, 0.5, 0.98])
@pytest.mark.parametrize(("row", "draft"), [(1e-4, 1e-3), (3e-3, 1e-3), (1e-3, 20e-3)])
def test_it_never_costs(sequences: int, confidence: float, row: float, draft: float) -> None:
    """Whatever the device and the drafts, the pace is within 3 % of plain decoding, or better."""
    house = House(sequences, row=row, draft=draft)
    house.run(1500, confidence)
    assert house.rate > 0.97 * house.plain_rate(sequences)


@pytest.mark.parametrize("sequences", [8, 64])
@pytest.mark.parametrize("measured_row", [1e-9, 20e-3])
def test_a_curve_that_lies_is_found_out(sequences: int, measured_row: float) -> None:
    """A busy machine measured rows as free, or as very dear; every step has the same size at first."""
    house = House(sequences, row=4e-3, draft=2e-3, measured_row=measured_row)
    house.run(1500, 0.5)
    assert house.rate > 0.95 * house.plain_rate(sequences)


@pytest.mark.parametrize("sequences", [1, 8])
def test_a_machine_that_slows_down_does_not_end_speculation_for_long(sequences: int) -> None:
    """Steps take three times as long: nobody's fault, and no reason to choose otherwise."""
    house = House(sequences, row=0.5e-3, draft=2e-3)
    house.run(100, 0.85)
    chosen = set(house.spares[-50:])
    house.disturbance = lambda step: 3.0
    house.run(600, 0.85)
    assert house.drafted[-600:].count(False) <= 4, "looks, no rest"
    assert set(house.spares[-600:]) == chosen | {0}
    assert house.policy._costs is not None
    assert house.policy._costs.load == pytest.approx(3.0)


def test_promises_that_are_not_kept_are_not_believed() -> None:
    """Confidences of 0.9 whose drafts are never right: trust falls, and with it what is verified."""
    house = House(8, row=2e-3)
    house.run(200, 0.9)
    assert min(house.spares[-50:]) > 8
    made = [np.zeros((8, DRAFTS))]
    house.made = made
    append = made.append
    house.made = type("Liar", (list,), {"append": lambda self, item: append(item * 0)})(made)
    tokens, time = house.tokens, house.time
    house.run(1500, 0.9)
    assert house.policy.totals().trust < 0.9
    assert (house.tokens - tokens) / (house.time - time) > 0.97 * house.plain_rate(8)


def test_drafting_rests_and_comes_back_when_drafts_are_better() -> None:
    house = House(16, row=1e-3, draft=8e-3)
    house.run(1200, 0.05)
    assert not all(house.drafted[-300:])
    resting = house.drafted[200:].count(False) / len(house.drafted[200:])
    assert resting > 0.9, "a few trials, no more"
    before = len(house.drafted)
    house.run(LONGEST_REST, 0.97)
    assert house.drafted[-20:].count(False) <= 1
    assert sum(house.spares[-10:]) > 10 * 16
    assert house.policy.totals().steps_without_drafts > SHORTEST_REST
    assert before > 0


def test_fewer_sequences_end_a_rest_at_once() -> None:
    """At 64 a draft displaces work that is worth more; alone, the same drafts pay."""
    house = House(64, row=1e-3, draft=2e-3)
    house.run(100, 0.7)
    assert house.policy.resting is not None
    assert house.policy.resting.resting
    house.keep(1)
    house.run(4, 0.7)
    assert not house.policy.resting.resting
    assert sum(house.drafted[-3:]) >= 2, "but for a look"


def test_prompts_end_no_rest() -> None:
    """The next batch begins with a few sequences, and all the others are on their way."""
    house = House(64, row=1e-3, draft=2e-3)
    policy = house.policy
    assert policy.resting is not None
    while policy.resting._left < 8 + PROBE:  # not near the end of a rest
        house.run(1, 0.7)
    house.keep(8)
    for step in range(house.step, house.step + 8):
        assert policy.spare(house.members, 100, step) == 0
        assert not policy.drafts(house.members, True, mixed=True)
    nobody = Members(house.ledger, np.empty(0, dtype=np.int32))
    assert policy.spare(nobody, 100, house.step + 8) == 0
    assert not policy.drafts(nobody, True, mixed=True), "prompts alone: nobody knows better"
    assert House(8).policy.drafts(nobody, True, mixed=True)


def test_costs_can_be_assumed() -> None:
    house = House(8, row=1e-6)
    dear = CostCurve(rows=(8, 40), seconds=(1.0, 20.0))
    house.policy.assume(CostModel(dear, 40))
    house.run(20, 0.3)
    assert set(house.spares) == {0}
    assert all(house.drafted)


def test_a_rest_is_interrupted_by_trials_only() -> None:
    house = House(16, row=5e-3, draft=20e-3)
    house.run(1000, 0.05)
    runs = "".join("x" if drafts else "." for drafts in house.drafted[100:]).split(".")
    assert max(map(len, runs)) <= TRIAL + 3


def test_caps_and_targets_reach_the_choice() -> None:
    house = House(3, row=1e-5)
    house.ledger.most_drafts[1:] = [0, 4, 2]
    house.keep(3)
    house.run(20, 0.9)
    assert max(house.spares) == 6
    house.ledger.latency_target[1:] = [1e-9, np.inf, np.inf]
    house.keep(3)
    house.run(20, 0.9)
    assert house.spares[-1] == 0, "nothing helps it but the shortest step"
    house.ledger.most_drafts[1:] = 0
    house.keep(3)
    house.run(5, 0.9)
    assert not any(house.drafted[-5:]), "nobody verifies, so nobody drafts"


def test_where_rows_are_all_but_free_nothing_is_chosen() -> None:
    """Survivals 0.5, 0.25, 0.025, 0.0225: the last drafts are worth little, and leaving them out less."""
    house = House(4, row=1e-6)
    house.run(40, np.array([0.5, 0.5, 0.1, 0.9], dtype=np.float32))
    assert set(house.spares[2:]) == {4 * DRAFTS, 0}
    assert len({id(house.members.layout(spare)) for spare in house.spares}) == 2, "layouts come again"


def test_forced_budgets() -> None:
    house = House(2)
    house.policy.force(lambda step, most: step % (most + 3), lambda step: step != 5)
    house.run(12, 0.5)
    expected = [0 if step in (0, 6) else min(step % 11, 2 * DRAFTS) for step in range(12)]
    assert house.spares == expected
    assert house.drafted == [step != 5 for step in range(12)]
