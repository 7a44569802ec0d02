"""The host's copy of the sampling parameters, and the rows it sends to the device's."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from stepahead.engine.model.runner import NO_TOKEN, BatchLayout
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.types import Occupant

from .core_driver import Setup, make_request


def occupant(slot: int, *, output: int = 0, choice: int = 0, prompt: int = 3, **params: object) -> Occupant:
    request = make_request(slot, [1] * prompt, choice=choice)
    resolved = msgspec.structs.replace(request.params, **params)
    return Occupant(slot=slot, request=msgspec.structs.replace(request, params=resolved), output=output)


def layout_of(*slots: int, samples: tuple[bool, ...] | None = None) -> BatchLayout:
    count = len(slots)
    ones = np.ones(count, dtype=np.int32)
    return BatchLayout(
        slots=np.array(slots, dtype=np.int32),
        sequence_keys=np.array(slots, dtype=np.int64),
        admissions=np.array(slots, dtype=np.int64),
        query_lengths=ones,
        row_starts=np.arange(count, dtype=np.int32),
        reach=ones,
        samples=np.array(samples or (True,) * count, dtype=np.bool_),
        decode_count=count,
        rows=count,
    )


def test_newcomers_become_rows_for_the_device() -> None:
    table = SamplingTable(Setup().shape())
    rows = table.occupy(
        [
            occupant(2, temperature=0.7, top_k=5, top_p=0.9, seed=2**64 - 1, end_ids=(0, 9), min_output=4),
            occupant(4, choice=2, prompt=6, output=5, logprobs=3),
        ]
    )
    assert rows.slots.tolist() == [2, 4]
    assert rows.temperature.tolist() == [pytest.approx(0.7), 0.0]
    assert (rows.top_k.tolist(), rows.top_p.tolist()) == ([5, 0], [pytest.approx(0.9), 1.0])
    assert rows.seed.tolist() == [2**64 - 1, 0]
    assert (rows.choice.tolist(), rows.origin.tolist(), rows.min_output.tolist()) == ([0, 2], [3, 6], [4, 0])
    assert rows.end_ids.tolist() == [[0, 9, NO_TOKEN], [NO_TOKEN] * 3]
    assert rows.logprobs.tolist() == [-1, 3]
    assert {array.dtype for array in (rows.slots, rows.top_k, rows.origin)} == {np.dtype(np.int32)}
    assert (rows.seed.dtype, rows.temperature.dtype) == (np.uint64, np.float32)
    assert table.left[[2, 4]].tolist() == [8, 3]


def test_no_newcomer_is_no_row() -> None:
    rows = SamplingTable(Setup().shape()).occupy([])
    assert rows.end_ids.shape == (0, 3)
    assert rows.slots.size == 0


@pytest.mark.parametrize(
    ("slots", "samples", "logprobs", "greedy"),
    [
        ((1,), None, -1, True),
        ((1, 2), None, 0, False),
        ((1, 2, 3), None, 7, False),
        ((1, 2), (True, False), -1, True),  # a chunk that draws nothing asks for nothing
    ],
)
def test_a_step_asks_for_the_most_of_its_sequences(
    slots: tuple[int, ...], samples: tuple[bool, ...] | None, logprobs: int, greedy: bool
) -> None:
    table = SamplingTable(Setup().shape())
    table.occupy([occupant(1), occupant(2, temperature=1.0, logprobs=0), occupant(3, logprobs=7)])
    plan = table.prepare(layout_of(*slots, samples=samples), (), step=5)
    assert (plan.step, plan.logprobs, plan.all_greedy) == (5, logprobs, greedy)


def test_a_repeated_layout_is_looked_at_again_after_an_admission() -> None:
    table = SamplingTable(Setup().shape())
    layout = layout_of(1)
    assert table.prepare(layout, [occupant(1)], 0).all_greedy
    assert table.prepare(layout, (), 1).all_greedy
    assert not table.prepare(layout, [occupant(1, temperature=1.0)], 2).all_greedy


def test_possible_ends_are_a_cheap_filter_that_misses_none() -> None:
    table = SamplingTable(Setup().shape())
    tokens = np.array([[0, 9], [10, NO_TOKEN], [10**6, 8]], dtype=np.int32)
    assert not table.may_end(tokens).any()
    table.occupy([occupant(1, end_ids=(9,))])
    assert table.may_end(tokens).tolist() == [[False, True], [False, False], [False, False]]
    table.occupy([occupant(1, end_ids=(0, 10))])
    in_vain = True  # no token looks like id 0
    assert table.may_end(tokens).tolist() == [[True, True], [True, in_vain], [False, False]]
