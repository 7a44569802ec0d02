"""The ledger's rows follow a sequence through its slot, and `check` names what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepahead.engine.cache.reservation import Admitted
from stepahead.engine.model.runner import BatchLayout
from stepahead.engine.sampling.commit import StepCommit
from stepahead.engine.scheduling.chunks import PromptRows, decode_layout, lay_out
from stepahead.engine.scheduling.ledger import DECODE, FREE, LEAVING, PREFILL, Ledger
from stepahead.engine.scheduling.limits import SchedulingLimits
from stepahead.engine.scheduling.sequence import Sequence, seniority

from .core_driver import Setup, make_request


def occupied(*slots: int, drafts: int = 0, prompt: int = 5, hit: int = 0) -> Ledger:
    """A ledger with one sequence of `prompt` tokens in each slot, blocks enough for 12 positions."""
    ledger = Ledger(Setup(draft_tokens=drafts).limits())
    for slot in slots:
        sequence = Sequence(make_request(100 + slot, list(range(prompt)), max_output=9), now=0.0)
        blocks = np.array([slot, slot + 10, slot + 20], dtype=np.int32)
        admitted = Admitted(sequence_key=sequence.key, hit_tokens=hit, blocks=blocks, snapshot=0)
        ledger.occupy(sequence, slot, slot + 500, admitted)
    return ledger


def prompt_step(ledger: Ledger, slot: int, start: int, end: int) -> BatchLayout:
    nobody = decode_layout(ledger, np.empty(0, dtype=np.int32))
    return lay_out(ledger, nobody, [PromptRows(slot, start, end)])


def decode_step(ledger: Ledger, *slots: int) -> BatchLayout:
    return decode_layout(ledger, np.array(slots, dtype=np.int32))


def commit_of(layout: BatchLayout, tokens: list[list[int]], advanced: list[int]) -> StepCommit:
    counts = [sum(token >= 0 for token in row) for row in tokens]
    return StepCommit(
        step=0,
        layout=layout,
        tokens=np.array(tokens, dtype=np.int32),
        counts=np.array(counts, dtype=np.int32),
        advanced=np.array(advanced, dtype=np.int32),
        finish=np.zeros(len(tokens), dtype=np.int8),
        drafted=np.zeros(len(tokens), dtype=np.int32),
        accepted=np.zeros(len(tokens), dtype=np.int32),
        any_finish=False,
    )


def numbers(ledger: Ledger, slot: int) -> tuple[int, ...]:
    """phase, length, cached, inflight, sampling, output."""
    arrays = (ledger.phase, ledger.length, ledger.cached, ledger.inflight, ledger.sampling, ledger.output)
    return tuple(int(array[slot]) for array in arrays)


def test_the_worked_example_of_the_in_flight_counters() -> None:
    """A prompt of 5, two drafts a step: K = 3; step n accepts one draft, step n+1 none (engine_spec 2.11)."""
    ledger = occupied(2, drafts=2)
    assert numbers(ledger, 2) == (PREFILL, 5, 0, 0, 0, 0)
    first = prompt_step(ledger, 2, 0, 4)
    ledger.plan(first)
    assert numbers(ledger, 2) == (PREFILL, 5, 0, 4, 0, 0)
    last = prompt_step(ledger, 2, 4, 5)
    ledger.plan(last)
    assert numbers(ledger, 2) == (DECODE, 5, 0, 5, 1, 0)
    ledger.check([first, last])
    ledger.commit(commit_of(first, [[-1, -1, -1]], [4]))
    step = decode_step(ledger, 2)
    ledger.plan(step)
    assert numbers(ledger, 2) == (DECODE, 5, 4, 4, 2, 0)
    ledger.check([last, step])
    ledger.commit(commit_of(last, [[70, -1, -1]], [1]))
    assert numbers(ledger, 2) == (DECODE, 6, 5, 3, 1, 1)
    ledger.plan(step)
    assert numbers(ledger, 2) == (DECODE, 6, 5, 6, 2, 1)
    ledger.check([step, step])
    ledger.commit(commit_of(step, [[71, 72, -1]], [2]))
    assert numbers(ledger, 2) == (DECODE, 8, 7, 3, 1, 3)
    ledger.commit(commit_of(step, [[73, -1, -1]], [1]))
    assert numbers(ledger, 2) == (DECODE, 9, 8, 0, 0, 4)
    ledger.check([])
    assert ledger.sequence_tokens(2).tolist() == [0, 1, 2, 3, 4, 70, 71, 72, 73]


@pytest.mark.parametrize("slots", [(1, 2, 3), (3, 1), (2,), (1, 3, 4)])
@pytest.mark.parametrize("drafts", [0, 2])
def test_a_step_touches_its_rows_only(slots: tuple[int, ...], drafts: int) -> None:
    ledger = occupied(1, 2, 3, 4, drafts=drafts)
    ledger.phase[1:] = DECODE
    ledger.cached[1:] = 4
    layout = decode_step(ledger, *slots)
    ledger.plan(layout)
    ledger.check([layout])
    padding = [-1] * drafts
    here = ledger.commit(commit_of(layout, [[60 + slot, *padding] for slot in slots], [1] * len(slots)))
    assert here.all()
    ledger.check([])
    for slot in range(1, 5):
        tokens = [0, 1, 2, 3, 4] + ([60 + slot] if slot in slots else [])
        assert ledger.sequence_tokens(slot).tolist() == tokens


def test_rows_of_those_who_left_change_nothing() -> None:
    ledger = occupied(1, 2, 3)
    ledger.phase[1:4] = DECODE
    ledger.cached[1:4] = 4
    layout = decode_step(ledger, 1, 2, 3)
    ledger.plan(layout)
    ledger.leave(1)
    assert numbers(ledger, 1) == (LEAVING, 5, 4, 0, 0, 0)
    assert ledger.vacate(3).tolist() == [23, 13, 3]  # deepest first
    assert numbers(ledger, 3) == (FREE, 0, 0, 0, 0, 0)
    ledger.check([layout])
    here = ledger.commit(commit_of(layout, [[61], [62], [63]], [1, 1, 1]))
    assert here.tolist() == [False, True, False]
    assert numbers(ledger, 1) == (LEAVING, 5, 4, 0, 0, 0)
    assert numbers(ledger, 2) == (DECODE, 6, 5, 0, 0, 1)
    ledger.check([])


def test_a_new_occupant_is_not_mistaken_for_the_old_one() -> None:
    ledger = occupied(1)
    layout = prompt_step(ledger, 1, 0, 5)
    ledger.plan(layout)
    ledger.vacate(1)
    sequence = Sequence(make_request(7, [1, 2, 3], max_output=9), now=0.0)
    blocks = np.array([5], dtype=np.int32)
    ledger.occupy(sequence, 1, 900, Admitted(sequence_key=7, hit_tokens=0, blocks=blocks, snapshot=0))
    assert not ledger.commit(commit_of(layout, [[61]], [5])).any()
    assert numbers(ledger, 1) == (PREFILL, 3, 0, 0, 0, 0)
    ledger.check([])


@pytest.mark.parametrize(
    ("slots", "counts", "entries"),
    [
        ([1], [1], [[1, 3, 8]]),
        ([3, 1], [1, 1], [[3, 3, 8], [1, 3, 9]]),
        ([3, 1], [1, 3], [[3, 3, 8], [1, 3, 9], [1, 4, 10], [1, 5, 11]]),
        ([1, 2, 3], [2, 1, 1], [[1, 3, 8], [1, 4, 9], [2, 3, 10], [3, 3, 11]]),
    ],
)
def test_tables_grow_at_their_ends(slots: list[int], counts: list[int], entries: list[list[int]]) -> None:
    ledger = occupied(1, 2, 3)
    ids = np.arange(8, 8 + sum(counts), dtype=np.int32)
    grown = ledger.grow(np.array(slots, dtype=np.int32), np.array(counts, dtype=np.int32), ids)
    assert grown.tolist() == entries
    for slot, count in zip(slots, counts, strict=True):
        assert ledger.block_count[slot] == 3 + count
    assert all(ledger.table[slot, column] == block for slot, column, block in entries)


@pytest.mark.parametrize(
    ("array", "value", "message"),
    [
        ("inflight", 1, "inflight is the reach of uncommitted rows"),
        ("sampling", 1, "sampling counts uncommitted steps that sample"),
        ("length", 9, "length is cached"),
        ("block_count", 1, "the table covers cached"),
        ("output", 10, "output is capped"),
        ("published", 3, "published is a multiple of a block"),
        ("published", 8, "published is a multiple of a block"),
        ("phase", FREE, "free rows are zero"),
    ],
)
def test_check_names_the_slot_and_the_invariant(array: str, value: int, message: str) -> None:
    ledger = occupied(1, 2)
    ledger.phase[1:3] = DECODE
    ledger.cached[1:3] = 4
    ledger.check([])
    getattr(ledger, array)[2] = value
    if array == "block_count":
        ledger.cached[2], ledger.length[2] = 8, 9
    with pytest.raises(AssertionError, match=f"slot 2 breaks: {message}"):
        ledger.check([])


@pytest.mark.parametrize(
    ("older", "younger"),
    [
        ((1, 0), (2, 0)),
        ((5, 1), (1, 0)),
        ((1, 0), (2, -1)),
        ((9, 10**9), (1, 0)),
        ((1, -(10**9)), (2, -(10**9))),
    ],
)
def test_priority_outranks_arrival(older: tuple[int, int], younger: tuple[int, int]) -> None:
    first, second = (
        seniority(make_request(key, [1], priority=priority)) for key, priority in (older, younger)
    )
    assert first < second
    assert abs(first) < 2**63


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence_slots": 0}, "no sequence slot"),
        ({"max_rows": 3}, "4 sequences decode 4 rows"),
        ({"max_positions": 40}, "40 positions are fewer"),
        ({"table_columns": 2}, "2 blocks do not cover"),
        ({"draft_tokens": 1, "max_positions": 52, "backtracking": 1}, "survive 1 rows"),
        ({"hit_margin": 0}, "samples nothing"),
        ({"prefill_chunk": 0}, "chunks of no row"),
    ],
)
def test_limits_that_cannot_be_scheduled_are_refused(fields: dict[str, Any], message: str) -> None:
    limits = Setup().limits()
    values = {name: getattr(limits, name) for name in limits.__struct_fields__}
    with pytest.raises(ValueError, match=message):
        SchedulingLimits(**{**values, **fields})
