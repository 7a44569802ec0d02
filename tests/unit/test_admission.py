"""Who may start next: order, bounded bypass, deadlines, choices that wait for their leader."""

from __future__ import annotations

import pytest

from stepahead.engine.scheduling.admission import AdmissionQueue
from stepahead.engine.scheduling.deadlines import Deadlines
from stepahead.engine.scheduling.groups import ChoiceGroups
from stepahead.engine.scheduling.sequence import Sequence

from .core_driver import make_request


def waiting(*priorities: int, max_bypass: int = 2) -> tuple[AdmissionQueue, list[Sequence]]:
    """A queue of sequences with keys 1, 2, ... and these priorities."""
    queue = AdmissionQueue(max_bypass)
    sequences = [
        Sequence(make_request(key, [1], priority=priority), now=0.0)
        for key, priority in enumerate(priorities, start=1)
    ]
    for sequence in sequences:
        queue.push(sequence)
    return queue, sequences


def keys(sequences: list[Sequence]) -> list[int]:
    return [sequence.key for sequence in sequences]


@pytest.mark.parametrize(
    ("priorities", "limit", "order"),
    [((0, 0, 0), 9, [1, 2, 3]), ((0, 1, 0, 1), 9, [2, 4, 1, 3]), ((-1, 0, 5), 2, [3, 2]), ((0,), 0, [])],
)
def test_priority_then_arrival(priorities: tuple[int, ...], limit: int, order: list[int]) -> None:
    queue, _ = waiting(*priorities, max_bypass=9)
    assert keys(queue.eligible(limit, lambda sequence: True)) == order


def test_a_preempted_sequence_returns_to_its_place() -> None:
    queue, sequences = waiting(0, 0, 0)
    queue.admit(sequences[:1], {1}, now=0.0)
    queue.push(sequences[0])
    assert keys(list(queue)) == [1, 2, 3]


def test_those_who_cannot_start_yet_are_passed_over_at_no_cost() -> None:
    queue, sequences = waiting(0, 0, 0, max_bypass=0)
    assert keys(queue.eligible(9, lambda sequence: sequence.key != 1)) == [2]
    assert sequences[0].bypassed == 0


def test_a_head_that_does_not_fit_is_overtaken_only_so_often() -> None:
    queue, sequences = waiting(0, 0, 0, 0, 0, max_bypass=2)
    overtakers = []
    while True:
        candidates = queue.eligible(9, lambda sequence: True)
        fitting = [sequence.key for sequence in candidates if sequence.key != 1][:1]
        if not fitting:
            break
        queue.admit(candidates, set(fitting), now=0.0)
        overtakers += fitting
    assert overtakers == [2, 3]
    assert sequences[0].bypassed == 2
    queue.admit(queue.eligible(9, lambda sequence: True), {1}, now=0.0)
    assert sequences[0].bypassed == 0
    assert keys(list(queue)) == [4, 5]


@pytest.mark.parametrize(("bypassed", "listed"), [(0, 3), (1, 2), (2, 1)])
def test_the_list_holds_only_as_many_as_may_still_overtake(bypassed: int, listed: int) -> None:
    queue, sequences = waiting(*[0] * 6, max_bypass=2)
    sequences[0].bypassed = bypassed
    assert len(queue.eligible(9, lambda sequence: True)) == listed


def test_only_those_before_the_last_admitted_were_overtaken() -> None:
    queue, sequences = waiting(0, 0, 0, 0)
    queue.admit(sequences, {2}, now=0.0)
    assert [sequence.bypassed for sequence in sequences] == [1, 0, 0, 0]
    queue.admit(sequences[2:], set(), now=0.0)
    assert [sequence.bypassed for sequence in sequences] == [1, 0, 0, 0]


def test_removing_what_does_not_wait_is_an_error() -> None:
    queue, sequences = waiting(0, 0)
    queue.remove(sequences[0])
    assert len(queue) == 1
    with pytest.raises(KeyError):
        queue.remove(sequences[0])


def test_the_estimate_is_the_pace_of_recent_admissions() -> None:
    queue, sequences = waiting(*[0] * 50)
    assert queue.estimate_seconds(now=9.0) is None
    for index, sequence in enumerate(sequences[:10]):
        queue.admit([sequence], {sequence.key}, now=float(index))
    assert queue.estimate_seconds(now=10.0) == pytest.approx(1.0)
    assert queue.estimate_seconds(now=30.0) == pytest.approx(3.0)  # nothing lately: slower than it was


def test_deadlines_expire_in_order_and_only_for_the_living() -> None:
    deadlines = Deadlines()
    for key, deadline in ((1, 5.0), (2, None), (3, 2.0), (4, 3.0)):
        deadlines.add(key, deadline)
    deadlines.discard(3)
    deadlines.discard(2)
    assert deadlines.next() == 3.0
    assert deadlines.expired(2.9) == []
    assert deadlines.expired(5.0) == [4, 1]
    assert (deadlines.next(), deadlines.expired(99.0)) == (None, [])


def test_the_dead_do_not_pile_up_until_their_deadline() -> None:
    deadlines = Deadlines()
    deadlines.add(0, 7200.0)
    for key in range(1, 10_000):
        deadlines.add(key, 3600.0)
        deadlines.discard(key)
    assert len(deadlines) < 100
    assert deadlines.next() == 7200.0


def test_choices_wait_for_the_prompt_and_the_next_one_leads_when_the_first_is_gone() -> None:
    groups = ChoiceGroups()
    first, second, third = (make_request(10 + i, [1], choice=i, leader=10, group=4) for i in range(3))
    alone = make_request(50, [1], group=5)
    for request in (first, second, third, alone):
        groups.join(request)
    assert [groups.may_start(r) for r in (first, second, third, alone)] == [True, False, False, True]
    groups.leave(first)
    assert [groups.may_start(r) for r in (second, third)] == [True, False]
    assert groups.prompt_cached(second)
    assert groups.may_start(third)
    assert not groups.prompt_cached(third)  # known already
    for request in (alone, second, third, third):
        groups.leave(request)
    assert len(groups) == 0
