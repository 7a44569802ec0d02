"""How many steps streams hear of at once follows what the device had to wait for."""

from __future__ import annotations

from stepahead.engine.scheduling.delivery import LATEST, MOST, QUIET, DeliveryPace

SHORT = LATEST / MOST / 2


def test_a_host_in_time_tells_every_step() -> None:
    pace = DeliveryPace()
    for _ in range(3 * QUIET):
        pace.observe(False)
        assert not pace.may_wait(1, SHORT)


def test_each_wait_adds_a_step_up_to_the_most() -> None:
    pace = DeliveryPace()
    for waits in range(1, 2 * MOST):
        pace.observe(True)
        held = min(1 + waits, MOST)
        assert pace.steps == held
        assert [pace.may_wait(untold, SHORT) for untold in range(1, MOST + 2)] == [
            untold < held for untold in range(1, MOST + 2)
        ]


def test_a_quiet_time_takes_one_step_off() -> None:
    pace = DeliveryPace()
    pace.observe(True)
    pace.observe(True)
    for expected in (3, 2, 1, 1):
        assert pace.steps == expected
        for _ in range(QUIET):
            pace.observe(False)


def test_a_wait_begins_the_quiet_time_anew() -> None:
    pace = DeliveryPace()
    for _ in range(MOST):
        pace.observe(True)
    for _ in range(3):
        for _ in range(QUIET - 1):
            pace.observe(False)
        pace.observe(True)
    assert pace.steps == MOST


def test_text_of_long_steps_does_not_wait() -> None:
    pace = DeliveryPace()
    for _ in range(MOST):
        pace.observe(True)
    assert pace.may_wait(1, LATEST)
    assert not pace.may_wait(1, 1.01 * LATEST)
    assert pace.may_wait(2, LATEST / 2)
    assert not pace.may_wait(2, LATEST)
