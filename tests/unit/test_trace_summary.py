"""What the analysis says of timelines whose gaps were put in by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead.engine.tracing.gaps import (
    CAUSES,
    COMMIT_LATE,
    LAUNCH,
    MAILBOX,
    PLAN_LATE,
    STARVATION,
    SYNCHRONISATION,
    UNKNOWN,
    find_gaps,
)
from stepahead.engine.tracing.intervals import union
from stepahead.engine.tracing.recorder import Record
from stepahead.engine.tracing.steps import NoStepsError, timeline
from stepahead.engine.tracing.summary import Summary, summarise
from stepahead.engine.tracing.vocabulary import DEVICE_WORK

from .trace_builder import Delays, ScriptedEngine, traced

STEPS = 20
BAD = 9


def _summary(path: Path, *, overlap: bool = True, **delay: int) -> Summary:
    """A run in which one step in the middle is delayed."""
    records = ScriptedEngine(overlap=overlap, delays={BAD: Delays(**delay)} if delay else {}).run(STEPS)
    return summarise(traced(path / "t.json", records, overlap=overlap))


def test_an_undisturbed_overlapped_run_keeps_the_device_busy_and_hides_everything(tmp_path: Path) -> None:
    summary = _summary(tmp_path)
    assert summary.steps == STEPS
    assert summary.device_busy == pytest.approx(1.0)
    assert summary.idle_gap.max == 0.0
    assert summary.host_exposed.total == pytest.approx(0.0)
    assert summary.hidden_share == pytest.approx(1.0)
    assert summary.step_time.p50 == summary.device_time.p50 == 1000.0
    assert summary.critical_path["device"] == pytest.approx(1.0)
    assert {step.reason for step in summary.worst_steps} == {"an ordinary step"}


def test_without_overlap_each_gap_is_the_lap_and_its_parts_are_told_apart(tmp_path: Path) -> None:
    """Notice 10 and collect 3; mailbox 5 three times; commit 20 and settle 5; plan 20; launch 5."""
    summary = _summary(tmp_path, overlap=False)
    parts = {cause: spread.p50 for cause, spread in summary.idle_by_cause.items() if spread.p50}
    assert parts == {SYNCHRONISATION: 13.0, MAILBOX: 15.0, COMMIT_LATE: 25.0, PLAN_LATE: 20.0, LAUNCH: 5.0}
    assert summary.idle_gap.p50 == 78.0
    assert summary.step_time.p50 == 1078.0
    assert summary.host_exposed.p50 == 3 + 20 + 5 + 20 + 5
    assert summary.device_busy == pytest.approx(1000 / 1078, abs=0.005)


@pytest.mark.parametrize(
    ("delay", "cause", "late", "device_ahead"),
    [
        ({"plan": 2000}, PLAN_LATE, BAD, 952),
        ({"commit": 2000}, COMMIT_LATE, BAD + 1, 880),
        ({"notice": 2000}, SYNCHRONISATION, BAD + 1, 897),
        ({"launch": 1500}, LAUNCH, BAD, 320),
    ],
)
def test_a_delay_longer_than_the_device_is_ahead_shows_in_the_right_step_with_the_right_cause(
    tmp_path: Path, delay: dict[str, int], cause: str, late: int, device_ahead: int
) -> None:
    summary = _summary(tmp_path, **delay)
    worst = summary.worst_steps[0]
    assert worst.step == late
    assert worst.reason.startswith(cause)
    (length,) = delay.values()
    assert summary.idle_by_cause[cause].max == pytest.approx(length - device_ahead, abs=130)


def test_a_delay_within_what_the_device_is_ahead_costs_nothing(tmp_path: Path) -> None:
    summary = _summary(tmp_path, plan=700)
    assert summary.idle_gap.total == 0.0
    assert summary.host_time.max > 700


def test_slow_messages_are_the_mailboxes_fault(tmp_path: Path) -> None:
    summary = _summary(tmp_path, overlap=False, mailbox=400)
    assert summary.idle_by_cause[MAILBOX].max >= 800
    assert summary.worst_steps[0].reason.startswith(MAILBOX)


def test_waiting_for_requests_is_starvation_and_makes_no_step_bad(tmp_path: Path) -> None:
    summary = _summary(tmp_path, arrival=50_000)
    starved = summary.idle_by_cause[STARVATION].total
    assert starved == pytest.approx(50_000, abs=1100)
    assert summary.critical_path[STARVATION] == pytest.approx(starved / (summary.seconds * 1e6))
    assert all(step.duration < 1100 for step in summary.worst_steps)


def test_a_long_step_of_the_device_is_its_own_reason(tmp_path: Path) -> None:
    summary = _summary(tmp_path, forward=4900)
    assert summary.worst_steps[0].reason == "device, 5.0 times the median step"


_delays = st.builds(
    Delays,
    plan=st.integers(1, 2500),
    commit=st.integers(1, 2500),
    mailbox=st.integers(0, 600),
    launch=st.integers(1, 600),
    notice=st.integers(0, 2500),
    forward=st.integers(50, 3000),
    arrival=st.none() | st.integers(0, 9000),
)


@given(st.booleans(), st.dictionaries(st.integers(1, 9), _delays, max_size=9))
def test_the_parts_of_all_gaps_add_up_and_nothing_stays_unexplained(
    tmp_path_factory: pytest.TempPathFactory, overlap: bool, delays: dict[int, Delays]
) -> None:
    records = ScriptedEngine(overlap=overlap, delays=delays).run(10)
    trace = traced(tmp_path_factory.mktemp("t") / "t.json", records)
    gaps = find_gaps(timeline(trace))
    for gap in gaps:
        assert sum(gap.seconds_of(cause) for cause in CAUSES) == pytest.approx(gap.end - gap.begin)
        assert gap.seconds_of(UNKNOWN) == 0.0
    summary = summarise(trace)
    assert sum(summary.critical_path.values()) == pytest.approx(1.0)
    assert summary.host_hidden.total + summary.host_exposed.total == pytest.approx(summary.host_time.total)


def test_work_whose_step_was_planned_before_the_trace_is_unknown(tmp_path: Path) -> None:
    records: list[Record] = [
        (DEVICE_WORK, 0, 10_000, "compute", "forward:0"),
        (DEVICE_WORK, 30_000, 40_000, "compute", "forward:1"),
    ]
    summary = summarise(traced(tmp_path / "t.json", records))
    assert summary.idle_by_cause[UNKNOWN].total == 20.0


def test_without_device_times_they_are_inferred_and_that_is_said(tmp_path: Path) -> None:
    records = [record for record in ScriptedEngine().run(STEPS) if record[0] != DEVICE_WORK]
    summary = summarise(traced(tmp_path / "t.json", records))
    assert summary.device_times == "inferred"
    assert summary.step_time.p50 == pytest.approx(1000.0)
    assert summary.device_busy == pytest.approx(1.0)


def test_waiting_for_the_cache_is_no_host_time_of_the_scheduler(tmp_path: Path) -> None:
    records: list[Record] = [
        (DEVICE_WORK, 0, 1_000_000, "compute", "forward:0"),
        ("scheduler.plan", 100_000, 200_000, 1, 0),
        ("scheduler.await_cache", 120_000, 180_000, 1, 0),
        ("cache_manager.reserve", 130_000, 170_000, 1, 0),
    ]
    summary = summarise(traced(tmp_path / "t.json", records))
    assert summary.host_by_actor["scheduler"].total == 40.0
    assert summary.host_by_actor["cache_manager"].total == 40.0
    assert summary.host_time.total == 80.0


def test_loop_lag_is_reported(tmp_path: Path) -> None:
    records = ScriptedEngine().run(3)
    records += [("event_loop.lag", 10**6 * n, 10**6 * n + 1000 * n, -1, 0) for n in range(1, 101)]
    lag = summarise(traced(tmp_path / "t.json", records)).loop_lag
    assert (lag.max, lag.p50) == (100.0, 50.5)


def test_a_trace_without_steps_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoStepsError):
        summarise(traced(tmp_path / "t.json", []))


_intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted).map(tuple), max_size=12)


@given(_intervals, _intervals)
def test_interval_sets_agree_with_sets_of_unit_cells(
    first: list[tuple[int, int]], second: list[tuple[int, int]]
) -> None:
    def cells(intervals: list[tuple[int, int]]) -> set[int]:
        return {cell for begin, end in intervals for cell in range(begin, end)}

    a, b = union(first), union(second)
    assert a.length == len(cells(first))
    assert a.common(b).length == len(cells(first) & cells(second))
    assert a.without(b).length == len(cells(first) - cells(second))
    edges = np.array([0.0, 7.0, 13.0, 60.0])
    expected = [
        len({c for c in cells(first) if low <= c < high}) for low, high in ((0, 7), (7, 13), (13, 60))
    ]
    assert a.within(edges).tolist() == expected
