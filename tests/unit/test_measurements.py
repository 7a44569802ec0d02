"""Histograms of durations: what is counted as a step, as an interval, and as exposed host time."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead.engine.measurements import COARSE, Measurements, Observations

MS = 10**6


@given(st.lists(st.floats(0.0, 100.0), max_size=50))
def test_observations_fall_into_their_buckets(values: list[float]) -> None:
    observations = Observations(COARSE)
    for value in values:
        observations.add(value)
    histogram = observations.histogram()
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))
    for bound, seen in histogram.cumulative():
        assert seen == sum(value <= bound for value in values)


@given(st.lists(st.floats(0.0, 59.0), min_size=1, max_size=50), st.sampled_from((0.5, 0.9, 0.99)))
def test_a_quantile_is_the_bound_above_it(values: list[float], share: float) -> None:
    observations = Observations(COARSE)
    for value in values:
        observations.add(value)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    bound = observations.histogram().quantile(share)
    assert exact <= bound
    assert all(lower < exact or lower >= bound for lower in COARSE)


def test_an_empty_histogram_has_quantile_zero_and_a_huge_value_none() -> None:
    observations = Observations(COARSE)
    assert observations.histogram().quantile(0.5) == 0.0
    observations.add(1e6)
    assert observations.histogram().quantile(0.5) == math.inf


def test_overlapped_steps_follow_each_other_and_expose_nothing() -> None:
    measured = Measurements()
    measured.launched(0 + 1)
    for step in range(1, 5):
        measured.launched(step * 10 * MS - 5 * MS)  # while the step before runs
        measured.settled(step * 10 * MS, more_enqueued=True)
    assert measured.step.histogram().quantile(1.0) == 0.01
    assert measured.exposed_host.total == 0.0
    assert measured.exposed_host.histogram().count == 4


def test_a_gap_between_steps_is_exposed_unless_there_was_nothing_to_do() -> None:
    measured = Measurements()
    measured.launched(1)
    measured.settled(10 * MS, more_enqueued=False)
    measured.launched(12 * MS)
    assert measured.exposed_host.total == pytest.approx(0.002)
    measured.settled(20 * MS, more_enqueued=False)
    measured.starved()
    measured.launched(9_000 * MS)
    measured.settled(9_010 * MS, more_enqueued=False)
    assert measured.exposed_host.total == pytest.approx(0.002)
    assert measured.step.total == pytest.approx(0.010 + 0.008 + 0.010)


def test_intervals_are_weighted_by_who_decoded() -> None:
    measured = Measurements()
    measured.committed(1 * MS, 0)  # prompts only
    measured.committed(11 * MS, 3)
    measured.committed(31 * MS, 2)
    assert measured.inter_token.histogram().count == 5
    assert measured.inter_token.total == pytest.approx(3 * 0.010 + 2 * 0.020)


def test_a_clock_that_is_off_measures_nothing() -> None:
    measured = Measurements()
    for _ in range(3):
        measured.launched(0)
        measured.settled(0, more_enqueued=True)
        measured.committed(0, 5)
    assert measured.step.histogram().count == 0
    assert measured.inter_token.histogram().count == 0
    assert measured.exposed_host.histogram().count == 0
