"""Looking ahead changes what a plan costs and nothing that it says."""

from __future__ import annotations

import pytest

from stepahead.engine.scheduling import horizon

from .core_driver import Driver, Setup, make_request

Said = list[tuple[list[int], list[int], list[list[int]], list[list[int]]]]


def everything_said(drafts: int, overlap: bool, prefix_cache: bool) -> tuple[Said, int]:
    """What all plans of a workload say, and how many laid out nothing new."""
    setup = Setup(
        draft_tokens=drafts,
        overlap=overlap,
        prefix_cache=prefix_cache,
        block_tokens=16,
        max_context=160,
        blocks=60,
        snapshots=4,
        slots=3,
    )
    driver = Driver(setup)
    driver.submit(*(make_request(key, [key] * (5 * key), max_output=60 + 20 * key) for key in (1, 2)))
    for step in range(400):
        if step == 30:
            driver.submit(make_request(3, [3] * 20, max_output=30))
        if step == 45:
            driver.cancel(2)
        if not driver.step():
            break
    driver.check_text()
    said = [
        (
            plan.layout.slots.tolist(),
            plan.first_positions.tolist(),
            plan.table_updates.tolist(),
            plan.state_copies.tolist(),
        )
        for plan in driver.plans
    ]
    return said, sum(a.layout is b.layout for a, b in zip(driver.plans, driver.plans[1:], strict=False))


@pytest.mark.parametrize("drafts", [0, 1, 4])
@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_plans_are_the_same_with_and_without_looking_ahead(
    drafts: int, overlap: bool, prefix_cache: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, repeated = everything_said(drafts, overlap, prefix_cache)
    monkeypatch.setattr(horizon, "MOST_ROWS", 0)
    assert everything_said(drafts, overlap, prefix_cache)[0] == looking
    assert repeated > 10


def test_most_steps_of_a_lone_sequence_look_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = horizon.Horizon.look
    monkeypatch.setattr(
        horizon.Horizon, "look", lambda self, rows, step: (looks.append(step), look(self, rows, step))
    )
    driver = Driver(Setup(block_tokens=32, max_context=160, blocks=20))
    driver.submit(make_request(1, [1, 2, 3], max_output=150))
    driver.run()
    driver.check_text()
    assert len(looks) < len(driver.plans) / 5


def test_steps_planned_the_long_way_use_up_the_horizon_too() -> None:
    """Somebody asks who does not fit, again and again, and then nobody for the rest of the block."""
    driver = Driver(Setup(block_tokens=32, max_context=160, blocks=6, slots=2, prefix_cache=False))
    driver.submit(make_request(1, [1, 2, 3], max_output=150))
    for key in range(2, 12):
        driver.step()
        driver.submit(make_request(key, [key] * 150, max_output=1))
    driver.run()
    driver.check_text()
    assert next(iter(driver.hits)) == 1


def test_a_newcomer_ends_the_horizon_of_those_who_were_there() -> None:
    """Its first plan needs a block, so nobody has looked ahead for both when its last token is planned."""
    driver = Driver(Setup(block_tokens=32, max_context=160, blocks=14, slots=2, prefix_cache=False))
    driver.submit(make_request(1, [1, 2, 3], max_output=100))
    for _ in range(3):
        driver.step()
    driver.submit(make_request(2, [2] * 32, max_output=5))
    driver.run()
    driver.check_text()
    decoded = [plan.layout.sequence_keys[: plan.layout.decode_count].tolist() for plan in driver.plans]
    assert sum(2 in keys for keys in decoded) == 4
