"""The forecast of blocks: learned lengths, the peak over expected ends, and room for a sequence alone."""

from __future__ import annotations

import numpy as np
import pytest

from stepahead.engine.scheduling.ledger import DECODE, LEAVING, PREFILL, Ledger
from stepahead.engine.scheduling.outlook import Outlook

from .core_driver import Driver, Setup, make_request


def outlook_of(*rows: tuple[int, int, int, int], expected: float = 100.0) -> Outlook:
    """Rows of (blocks held, prefill, output, cap) in slots 1, 2, ...; blocks of 4 tokens, no drafts."""
    ledger = Ledger(Setup(slots=6).limits())
    for slot, (blocks, prefill, output, cap) in enumerate(rows, start=1):
        ledger.phase[slot] = PREFILL if output == 0 else DECODE
        ledger.block_count[slot], ledger.prefill_end[slot] = blocks, prefill
        ledger.output[slot], ledger.max_output[slot] = output, cap
    outlook = Outlook(ledger)
    outlook.expected_output = expected
    return outlook


@pytest.mark.parametrize(
    ("rows", "expected", "blocks"),
    [
        ([], 100.0, 0),
        ([(5, 8, 4, 4)], 100.0, 0),  # at its cap
        ([(5, 8, 4, 12)], 100.0, 2),
        ([(5, 8, 4, 400)], 8.0, 2),  # nobody expects 396 more
        ([(1, 18, 0, 0)], 100.0, 4),  # a prompt in progress needs its 18 + 2 tokens
        ([(1, 18, 0, 8)], 100.0, 6),
        ([(5, 8, 4, 12), (5, 8, 4, 12)], 100.0, 4),
        ([(5, 8, 4, 12), (5, 8, 10, 12)], 100.0, 1),  # the second ends early and leaves its blocks
        ([(5, 8, 4, 12), (5, 8, 4, 5)], 100.0, 1),
        ([(5, 8, 4, 20), (1, 4, 12, 20)], 100.0, 5),
    ],
)
def test_the_peak_counts_those_that_end_on_the_way(
    rows: list[tuple[int, int, int, int]], expected: float, blocks: int
) -> None:
    assert outlook_of(*rows, expected=expected).future_blocks() == blocks


def test_those_who_leave_need_nothing() -> None:
    outlook = outlook_of((5, 8, 4, 12))
    outlook._ledger.phase[1] = LEAVING
    assert outlook.future_blocks() == 0


@pytest.mark.parametrize(
    ("prefill", "remaining", "expected", "blocks"),
    [(6, 8, 100.0, 2), (6, 100, 8.0, 2), (6, 0, 9.0, 0), (5, 1, 9.0, 0), (6, 1, 9.0, 1), (6, 100, 0.0, 0)],
)
def test_a_newcomer_needs_room_for_what_it_will_say(
    prefill: int, remaining: int, expected: float, blocks: int
) -> None:
    assert outlook_of(expected=expected).headroom(prefill, remaining) == blocks


def test_lengths_are_learned_from_ends_and_from_preemptions() -> None:
    outlook = outlook_of((5, 8, 30, 400), (5, 8, 50, 400), expected=0.0)
    outlook.ended(10)
    outlook.ended(20)
    assert outlook.expected_output == pytest.approx(15.0)
    outlook.preempted()
    assert outlook.expected_output == pytest.approx(40.0)  # those that run have lasted this long
    for _ in range(500):
        outlook.ended(6)
    assert outlook.expected_output == pytest.approx(6.0, rel=0.01)


def test_the_forecast_never_keeps_a_sequence_out_that_fits_alone() -> None:
    setup = Setup(blocks=13, max_context=46)
    for prompt in range(1, 46):
        driver = Driver(setup)
        driver.core._outlook.expected_output = 10_000.0
        driver.submit(make_request(1, [1] * prompt, max_output=46 - prompt))
        planned = driver.plan()
        assert planned is not None
        assert len(planned.admitted) == 1


def test_under_memory_pressure_little_is_computed_twice() -> None:
    """The pool holds a third of the slots' sequences; without the forecast prompts are computed 3.9 times."""
    random = np.random.default_rng(3)
    driver = Driver(Setup(slots=8, blocks=40, max_context=60, snapshots=8, max_rows=40, prefill_chunk=16))
    prompts = 0
    for key in range(1, 61):
        length, output = (int(n) for n in random.integers((2, 10), (12, 48)))
        prompts += length
        driver.submit(make_request(key, [key % 16] * length, max_output=output, seed=key))
    driver.run()
    driver.check_text()
    computed = sum(int(plan.chunk_tokens.size) for plan in driver.plans)
    assert computed < 1.5 * prompts
