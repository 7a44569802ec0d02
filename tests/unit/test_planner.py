"""What the scheduling core plans, told as short stories on the fake device."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from stepahead.engine.model.runner import StepPlan
from stepahead.engine.sampling.commit import resolve
from stepahead.engine.types import Request

from .core_driver import Driver, Setup, make_request

BOTH = pytest.mark.parametrize("overlap", [True, False])


def steps(driver: Driver) -> list[tuple[int, int]]:
    """(sequences that decode, prompt rows) of each plan."""
    found = []
    for plan in driver.plans:
        layout = plan.layout
        found.append((layout.decode_count, int(layout.query_lengths[layout.decode_count :].sum())))
    return found


def run(setup: Setup, *requests: Request) -> Driver:
    """Submits all at once, runs to the end, and checks text and returns."""
    driver = Driver(setup)
    driver.submit(*requests)
    driver.run()
    driver.plan()
    driver.check_text()
    driver.check_idle()
    return driver


@BOTH
def test_one_sequence_takes_no_step_that_it_does_not_need(overlap: bool) -> None:
    driver = run(Setup(overlap=overlap, prefill_chunk=16), make_request(1, [1, 2, 3], max_output=5))
    assert steps(driver) == [(0, 3), (1, 0), (1, 0), (1, 0), (1, 0)]
    assert [plan.first_positions.tolist() for plan in driver.plans] == [[0], [3], [4], [5], [6]]
    assert driver.ended == {1: "finished"}


@BOTH
def test_max_tokens_zero_computes_the_prompt_and_ends(overlap: bool) -> None:
    driver = run(Setup(overlap=overlap), make_request(1, [1, 2, 3], max_output=0))
    assert steps(driver) == [(0, 3)]
    assert (driver.ended, driver.outputs) == ({1: "finished"}, {1: []})


@BOTH
def test_steady_decode_reuses_its_layout_and_asks_for_nothing(overlap: bool) -> None:
    setup = Setup(overlap=overlap, block_tokens=32, max_context=96, prefix_cache=False)
    driver = Driver(setup)
    driver.submit(*(make_request(key, [key, 2, 3], max_output=25) for key in (1, 2, 3)))
    for _ in range(4):
        driver.step()
    before = driver.demands
    for _ in range(18):
        driver.step()
    assert driver.demands == before
    assert len({id(plan.layout) for plan in driver.plans[-18:]}) == 1
    assert driver.plans[-1].table_updates.shape == (0, 3)


@BOTH
def test_prompts_overlap_and_mix_with_decoding_under_the_budget(overlap: bool) -> None:
    driver = Driver(Setup(overlap=overlap, max_rows=8, prefill_chunk=8, slots=3))
    driver.submit(make_request(1, [1, 2, 3], max_output=12))
    driver.step()
    driver.submit(make_request(2, list(range(1, 18)), max_output=3))
    driver.submit(make_request(3, [7, 8], max_output=3))
    driver.run()
    driver.check_text()
    planned = steps(driver)
    assert max(decode + prompt for decode, prompt in planned) <= 8
    assert sum(prompt for _, prompt in planned) == 3 + 17 + 2
    assert any(decode and prompt for decode, prompt in planned)
    first_mixed = next(i for i, (decode, prompt) in enumerate(planned) if decode and prompt)
    assert all(decode for decode, _ in planned[first_mixed : first_mixed + 4])  # nobody stalls for a prompt


@pytest.mark.parametrize("drafts", [0, 1, 3])
@BOTH
def test_drafts_change_the_number_of_steps_and_not_the_text(drafts: int, overlap: bool) -> None:
    setup = Setup(draft_tokens=drafts, overlap=overlap, max_context=64, blocks=40)
    requests = [make_request(key, [key, 5, 6], max_output=40, seed=key) for key in (1, 2, 3)]
    driver = run(setup, *requests)
    assert driver.outputs == run(Setup(max_context=64, blocks=40), *requests).outputs
    assert (driver.accepted > 0) == (drafts > 0)
    assert len(driver.plans) < 40 if drafts else len(driver.plans) >= 40


def test_the_second_asking_hits_and_restores_the_window() -> None:
    driver = Driver(Setup(snapshots=8))
    prompt = list(range(1, 15))
    driver.submit(make_request(1, prompt, max_output=2))
    driver.run()
    driver.submit(make_request(2, prompt, max_output=2, seed=9))
    planned = driver.plan()
    assert planned is not None
    assert planned.cached_tokens == (12,)
    assert planned.resumed == (False,)
    assert planned.plan.state_copies.shape == (1, 2)
    assert planned.plan.state_copies[0, 1] == planned.admitted[0].slot
    assert planned.plan.first_positions.tolist() == [12]
    driver.run()
    driver.check_text()


@pytest.mark.parametrize("drafts", [0, 3])
@BOTH
def test_the_next_turn_of_a_conversation_hits_generated_text(overlap: bool, drafts: int) -> None:
    driver = Driver(Setup(overlap=overlap, draft_tokens=drafts, snapshots=8, blocks=40))
    driver.submit(make_request(1, [1, 2, 3, 4, 5], max_output=24))
    driver.run()
    said = [1, 2, 3, 4, 5, *driver.outputs[1]]
    driver.submit(make_request(2, [*said, 9], max_output=3))
    driver.run()
    driver.check_text()
    assert driver.hits[2][0] >= 20  # of 29; the newest state with drafts may be one boundary behind


@BOTH
def test_a_fully_cached_aligned_prompt_computes_its_last_block(overlap: bool) -> None:
    driver = Driver(Setup(overlap=overlap, snapshots=8))
    prompt = list(range(1, 17))
    for key in (1, 2, 3):
        driver.submit(make_request(key, prompt, max_output=3, seed=key))
        driver.run()
    assert (driver.hits[2], driver.hits[3]) == ([12], [12])
    driver.check_text()


@BOTH
def test_choices_compute_their_prompt_once(overlap: bool) -> None:
    prompt = list(range(1, 16))
    requests = [
        make_request(10 + i, prompt, choice=i, leader=10, group=1, max_output=6, seed=3) for i in range(4)
    ]
    driver = run(Setup(overlap=overlap, slots=4, snapshots=8, blocks=60), *requests)
    assert driver.hits == {10: [0], 11: [12], 12: [12], 13: [12]}
    assert len({tuple(output) for output in driver.outputs.values()}) > 1
    assert sum(prompt_rows for _, prompt_rows in steps(driver)) == 15 + 3 * 3


def test_choices_of_a_prompt_without_a_full_block_start_at_once() -> None:
    requests = [make_request(10 + i, [1, 2], choice=i, leader=10, group=1) for i in range(3)]
    driver = Driver(Setup())
    driver.submit(*requests)
    planned = driver.plan()
    assert planned is not None
    assert len(planned.admitted) == 3


def test_when_the_leader_leaves_early_the_next_choice_takes_over() -> None:
    prompt = list(range(1, 16))
    driver = Driver(Setup(snapshots=8, blocks=60))
    driver.submit(*(make_request(10 + i, prompt, choice=i, leader=10, group=1) for i in range(3)))
    driver.plan()
    driver.cancel(10)
    driver.run()
    assert driver.hits[11] == [0]
    assert driver.hits[12] == [12]
    driver.check_text()


@BOTH
def test_preemption_takes_the_cheapest_and_resumes_exactly(overlap: bool) -> None:
    setup = Setup(overlap=overlap, slots=3, blocks=14, max_context=40, snapshots=6)
    requests = [make_request(key, [key] * 4, max_output=30, seed=key) for key in (1, 2, 3)]
    driver = run(setup, *requests)
    assert driver.core.counts().preemptions > 0
    assert len(driver.hits[1]) == 1  # the oldest is never preempted
    resumed = [hit for key in (2, 3) for hit in driver.hits[key][1:]]
    assert len(resumed) == driver.core.counts().preemptions


def test_a_preempted_sequence_keeps_what_the_step_in_flight_gives_it() -> None:
    driver = Driver(Setup(slots=2, blocks=12, max_context=40, snapshots=2))
    driver.submit(make_request(1, [1] * 4, max_output=30), make_request(2, [2] * 4, max_output=30))
    while not driver.core.counts().preemptions:
        assert driver.step()
    (sequence,) = list(driver.core.queue)
    known = len(driver.outputs[2])
    while sequence.uncommitted:
        driver.commit()
    assert len(driver.outputs[2]) == sequence.output > 0
    assert len(driver.outputs[2]) >= known
    assert sequence.tokens.tolist() == [2] * 4 + driver.outputs[2]
    driver.run()
    driver.check_text()


def test_a_sequence_whose_last_token_is_in_flight_may_be_preempted_and_end_while_it_waits() -> None:
    preempted = []
    for length in range(2, 30):
        driver = Driver(Setup(slots=2, blocks=11, max_context=40, snapshots=2))
        driver.submit(make_request(1, [1] * 4, max_output=30), make_request(2, [2] * 4, max_output=length))
        driver.run()
        driver.check_text()
        if driver.core.counts().preemptions and len(driver.hits[2]) == 1:
            preempted.append(length)
    assert len(preempted) == 1  # of all lengths one ends in the very step that needs its blocks


def test_a_cancelled_sequence_leaves_at_the_next_plan_and_returns_everything() -> None:
    driver = Driver(Setup(prefix_cache=False))
    driver.submit(make_request(1, [1] * 9, max_output=20), make_request(2, [2] * 5, max_output=20))
    for _ in range(3):
        driver.step()
    held = driver.cache.statistics().free
    assert driver.cancel(1)
    assert not driver.cancel(1)
    assert driver.cache.statistics().free == held
    assert driver.core.counts().running == 1
    planned = driver.plan()
    assert planned is not None
    assert planned.plan.layout.sequence_keys.tolist() == [2]
    assert driver.cache.statistics().free > held
    assert driver.retired == []
    driver.commit()
    assert driver.retired == [1]  # its rows in the step in flight were the last to mention it
    driver.run()
    driver.check_text()


def test_everything_cancelled_in_flight_needs_no_further_request_to_come_back() -> None:
    driver = Driver(Setup(slots=4))
    driver.submit(*(make_request(key, [key] * 6, max_output=9) for key in range(1, 9)))
    for _ in range(3):
        driver.step()
    driver.plan()
    for key in driver.core.cancel_all():
        driver.ended[key] = "cancelled"
    while driver.step():
        pass
    driver.check_idle()
    assert sorted(driver.retired) == list(range(1, 9))


def test_pausing_plans_no_step_but_still_returns_what_ended() -> None:
    driver = Driver(Setup())
    driver.submit(make_request(1, [1] * 6, max_output=20), make_request(2, [2] * 6, max_output=20))
    for _ in range(3):
        driver.step()
    driver.core.paused = True
    while driver.flight:
        driver.commit()
    driver.cancel(1)
    before = driver.cache.statistics().free
    assert driver.plan() is None
    assert driver.cache.statistics().free > before
    driver.core.paused = False
    driver.run()
    driver.check_text()


def test_deadlines_end_waiting_and_running_sequences() -> None:
    driver = Driver(Setup(slots=1))
    driver.submit(
        make_request(1, [1] * 4, max_output=20, deadline=5.0),
        make_request(2, [2] * 4, max_output=20, deadline=3.0),
        make_request(3, [3] * 4, max_output=4),
    )
    driver.step()
    assert driver.core.next_deadline() == 3.0
    driver.now = 6.0
    driver.expire()
    assert driver.ended == {2: "deadline", 1: "deadline"}
    assert driver.core.next_deadline() is None
    driver.run()
    driver.check_text()
    assert driver.ended[3] == "finished"


def test_a_higher_priority_is_admitted_first() -> None:
    driver = Driver(Setup(slots=1))
    driver.submit(*(make_request(key, [key], max_output=2, priority=key) for key in (1, 2, 3)))
    driver.run()
    assert list(driver.hits) == [3, 2, 1]


def test_a_failed_row_ends_its_sequence_alone() -> None:
    driver = Driver(Setup())
    driver.submit(make_request(1, [1] * 4, max_output=6), make_request(2, [2] * 4, max_output=6))
    driver.plan()
    planned, result = driver.flight[0]
    driver.flight[0] = (planned, msgspec.structs.replace(result, finite=np.array([False, True])))
    driver.commit()
    assert driver.ended == {1: "finished"}
    assert driver.outputs[1] == []
    del driver.ended[1], driver.outputs[1]
    driver.run()
    driver.check_text()


@pytest.mark.parametrize(("overlap", "depth"), [(True, 2), (False, 1)])
def test_planning_too_deep_is_a_bug_and_says_so(overlap: bool, depth: int) -> None:
    driver = Driver(Setup(overlap=overlap))
    driver.submit(make_request(1, [1] * 6, max_output=6))
    for _ in range(depth):
        assert driver.plan() is not None
    with pytest.raises(AssertionError, match=f"{depth} steps are uncommitted"):
        next(driver.core.plan(0.0))


def test_commits_come_in_order() -> None:
    driver = Driver(Setup())
    driver.submit(make_request(1, [1] * 6, max_output=6))
    driver.plan()
    driver.plan()
    planned, result = driver.flight[1]
    commit = resolve(planned.plan.layout, result, driver.table)
    with pytest.raises(AssertionError, match="commit of step 1 while step 0 is the oldest"):
        driver.core.commit(commit, 0.0)


def test_plans_hold_every_position_below_the_promised_bound() -> None:
    setup = Setup(draft_tokens=3, max_context=24, blocks=30)
    driver = run(setup, make_request(1, [1] * 20, max_output=4), make_request(2, [2], max_output=23))
    last: list[StepPlan] = driver.plans
    highest = max(int((plan.first_positions + plan.layout.reach).max()) for plan in last)
    assert highest <= setup.max_context + 2 * setup.width


def test_admissions_of_one_plan_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepahead.engine.scheduling.admitting.MAX_ADMISSIONS", 3)
    driver = Driver(Setup(slots=8, blocks=60, max_rows=64))
    driver.submit(*(make_request(key, [key], max_output=4) for key in range(1, 9)))
    counts = []
    while (planned := driver.plan()) is not None and len(counts) < 3:
        counts.append(len(planned.admitted))
        driver.commit()
    assert counts == [3, 3, 2]
