"""Traps F3 to F9: what broke other schedulers and caches, tried on this one."""

from __future__ import annotations

from random import Random

import pytest

from stepahead.engine.cache import prefix_index

from .core_driver import Driver, Setup, make_request


def finish(driver: Driver) -> None:
    driver.run()
    driver.plan()
    driver.check_text()
    driver.check_idle()


@pytest.mark.parametrize("overlap", [True, False])
def test_f3_prefix_hits_change_while_plans_are_made(overlap: bool) -> None:
    """512 requests with shared prefixes in a small pool: the hit decides the plan, never the reverse."""
    random = Random(5)
    driver = Driver(Setup(overlap=overlap, slots=6, blocks=22, snapshots=5, max_rows=40, vocab=50))
    prefixes = [[random.randrange(1, 50) for _ in range(24)] for _ in range(4)]
    for key in range(1, 513):
        prompt = [*random.choice(prefixes)[: random.randint(1, 24)], random.randrange(1, 50)]
        driver.submit(make_request(key, prompt, max_output=random.randint(1, 4), seed=key))
        if key % 3 == 0:
            driver.step()
    finish(driver)
    assert sum(hit > 0 for hits in driver.hits.values() for hit in hits) > 50


@pytest.mark.parametrize("aborted", [True, False])
def test_f4_blocks_that_are_not_written_yet_are_never_hit(aborted: bool) -> None:
    driver = Driver(Setup(slots=2, snapshots=6, blocks=40, prefill_chunk=8))
    prompt = list(range(1, 17)) * 2
    driver.submit(make_request(1, prompt, max_output=4), make_request(2, prompt, max_output=4, seed=2))
    driver.plan()  # both first chunks in one step: the second finds nothing
    assert driver.hits == {1: [0], 2: [0]}
    driver.plan()
    if aborted:
        driver.cancel(1)  # between its chunks
    driver.submit(make_request(3, prompt, max_output=4, seed=3))
    finish(driver)
    assert driver.hits[3][0] > 0


def test_f5_a_head_that_does_not_fit_is_bypassed_but_not_starved() -> None:
    driver = Driver(Setup(slots=4, blocks=16, max_bypass=5, prefix_cache=False, max_context=48))
    driver.submit(make_request(1, [1] * 20, max_output=12))
    driver.step()
    driver.submit(make_request(2, [2] * 46, max_output=1))  # fits only alone
    driver.submit(*(make_request(key, [3] * 4, max_output=2) for key in range(3, 40)))
    finish(driver)
    order = list(driver.hits)
    assert order[:2] == [1, 3]
    assert order.index(2) <= 1 + 5


def test_f5_a_head_that_fits_again_is_tried_when_something_was_freed() -> None:
    driver = Driver(Setup(slots=2, blocks=13, prefix_cache=False))
    driver.submit(make_request(1, [1] * 20, max_output=10), make_request(2, [2] * 40, max_output=2))
    for _ in range(4):
        driver.step()
    before = driver.demands
    for _ in range(3):
        driver.step()
    assert driver.demands - before <= 1  # nothing changed: the head is not asked for again every step
    driver.cancel(1)
    planned = driver.plan()
    assert planned is not None
    assert [occupant.request.key for occupant in planned.admitted] == [2]
    finish(driver)


@pytest.mark.parametrize("overlap", [True, False])
def test_f6_cuts_do_not_depend_on_the_cache_or_the_neighbours(overlap: bool) -> None:
    """Cold, warm, alone or among others, with any budget that holds a chunk: the same cuts."""
    prompt = list(range(1, 12)) * 3
    cuts = set()
    for neighbours, max_rows in ((0, 64), (3, 64), (0, 32)):
        driver = Driver(Setup(overlap=overlap, max_rows=max_rows, snapshots=9, blocks=80, slots=4))
        driver.submit(*(make_request(50 + i, [i + 1] * 3, max_output=12) for i in range(neighbours)))
        for key in (1, 2):
            driver.submit(make_request(key, prompt, max_output=2, seed=key))
            driver.run()
        ends = [
            int(first + length)
            for plan in driver.plans
            for key, first, length in zip(
                plan.layout.sequence_keys[plan.layout.decode_count :],
                plan.first_positions[plan.layout.decode_count :],
                plan.layout.query_lengths[plan.layout.decode_count :],
                strict=True,
            )
            if key in (1, 2)
        ]
        cuts.add(tuple(ends))
        driver.check_text()
    assert cuts == {(8, 16, 24, 32, 33, 33)}


def test_f7_many_sequences_that_end_in_their_first_mixed_step() -> None:
    driver = Driver(Setup(slots=4, blocks=200, max_context=400, max_rows=16))
    driver.submit(make_request(1, [1, 2], max_output=390))
    for key in range(2, 1_002):
        driver.submit(make_request(key, [5], max_output=1))
        if key % 3 == 0:
            driver.step()
    mixed = sum(0 < plan.layout.decode_count < plan.layout.slots.size for plan in driver.plans)
    finish(driver)
    assert mixed > 100
    assert driver.core.counts().preemptions == 0


@pytest.mark.parametrize("collide", [True, False])
def test_f8_neither_collisions_nor_tenants_share_context(
    collide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if collide:
        monkeypatch.setattr(prefix_index, "chain_digest", lambda salt, parent, tokens: b"same")
    driver = Driver(Setup(snapshots=8, blocks=60))
    for key, (start, salt) in enumerate(((1, b"a"), (1, b"b"), (5, b"a"), (1, b"a"), (5, b"a")), start=1):
        prompt = list(range(start, start + 11))
        driver.submit(make_request(key, prompt, max_output=6, salt=salt))
        driver.run()
    driver.check_text()
    assert driver.hits[2] == [0]
    assert driver.hits[4] == [
        0 if collide else 8
    ]  # the second block collides with the first: nothing is kept


@pytest.mark.parametrize("moment", range(1, 12))
def test_f9_pause_reset_resume_is_exact(moment: int) -> None:
    driver = Driver(Setup(draft_tokens=2, snapshots=6, blocks=40))
    prompt = list(range(1, 14))
    driver.submit(*(make_request(key, prompt, max_output=14, seed=key) for key in (1, 2)))
    for _ in range(moment):
        driver.step()
    driver.core.paused = True
    while driver.flight:
        driver.commit()
    driver.plan()
    driver.reset()
    driver.core.paused = False
    driver.submit(make_request(3, prompt, max_output=14, seed=3))
    finish(driver)
