"""Where prompts are cut, and what a plan says of their rows."""

from __future__ import annotations

import numpy as np
import pytest

from stepahead.engine.model.runner import NO_TOKEN
from stepahead.engine.scheduling.chunks import PromptRows, chunk_end, decode_layout, lay_out, mixed_plan

from .core_driver import Setup
from .test_ledger import occupied

NO_ROWS = np.empty((0, 3), dtype=np.int32)
NO_PAIRS = np.empty((0, 2), dtype=np.int32)


@pytest.mark.parametrize(
    ("start", "prefill_end", "budget", "end"),
    [
        (0, 40, 100, 16),  # a multiple of prefill_chunk
        (16, 40, 100, 32),
        (32, 40, 100, 36),  # the last boundary a hit could use: one row is left behind it
        (36, 40, 100, 40),
        (32, 41, 100, 40),
        (0, 3, 100, 3),
        (0, 4, 100, 4),  # nothing before 4 could be kept
        (0, 5, 100, 4),
        (20, 40, 100, 32),  # behind a hit the cuts are the same
        (0, 40, 9, 8),  # a small budget cuts at a block boundary
        (0, 40, 4, 4),
        (0, 40, 3, 3),  # or, below one, wherever it ends
        (3, 40, 3, 4),
        (37, 40, 2, 39),
        (39, 40, 1, 40),
    ],
)
def test_chunks_end_where_they_do_not_depend_on_load(
    start: int, prefill_end: int, budget: int, end: int
) -> None:
    assert chunk_end(start, prefill_end, budget, Setup(prefill_chunk=16).limits()) == end


@pytest.mark.parametrize(
    ("fields", "start", "prefill_end", "end"),
    [
        ({"prefix_cache": False}, 32, 40, 40),
        ({"hit_margin": 3}, 32, 40, 36),
        ({"hit_margin": 5}, 32, 40, 40),  # the last usable boundary is 32, where the chunk starts
        ({"prefill_chunk": 5}, 0, 40, 5),
    ],
)
def test_cuts_follow_what_a_hit_could_use(
    fields: dict[str, int], start: int, prefill_end: int, end: int
) -> None:
    limits = Setup(**{"prefill_chunk": 16, **fields}).limits()
    assert chunk_end(start, prefill_end, 100, limits) == end


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 9, 100])
@pytest.mark.parametrize("prefill_end", [1, 4, 15, 33])
def test_chunks_cover_a_prompt_without_gap_or_overrun(budget: int, prefill_end: int) -> None:
    limits, start = Setup(prefill_chunk=6).limits(), 0
    while start < prefill_end:
        end = chunk_end(start, prefill_end, budget, limits)
        assert start < end <= min(prefill_end, start + budget)
        start = end
    assert start == prefill_end


def test_a_mixed_step_lays_decode_rows_before_prompts() -> None:
    ledger = occupied(1, 2, 3, 4, drafts=2, prompt=9)
    decode = decode_layout(ledger, np.array([3], dtype=np.int32))
    prompts = [PromptRows(4, 0, 4), PromptRows(1, 2, 9)]
    layout = lay_out(ledger, decode, prompts)
    assert layout.slots.tolist() == [3, 4, 1]
    assert layout.sequence_keys.tolist() == [103, 104, 101]
    assert layout.admissions.tolist() == [503, 504, 501]
    assert layout.query_lengths.tolist() == layout.reach.tolist() == [3, 4, 7]
    assert layout.row_starts.tolist() == [0, 3, 7]
    assert layout.samples.tolist() == [True, False, True]
    assert (layout.decode_count, layout.rows) == (1, 14)
    assert lay_out(ledger, decode, []) is decode

    first = np.array([20, 0, 2], dtype=np.int32)
    plan = mixed_plan(7, layout, first, ledger, prompts, NO_ROWS, NO_PAIRS)
    assert plan.chunk_tokens.tolist() == [0, 1, 2, 3, 2, 3, 4, 5, 6, 7, 8]
    assert plan.chunk_history.tolist() == [[NO_TOKEN] * 3, [NO_TOKEN, 0, 1]]
    assert plan.chunk_ends.tolist() == [9, 9]
    assert {array.dtype for array in (plan.chunk_tokens, plan.chunk_history, plan.chunk_ends)} == {
        np.dtype(np.int32)
    }


def test_a_layout_cannot_be_written() -> None:
    layout = decode_layout(occupied(1, 2), np.array([1, 2], dtype=np.int32))
    for array in (layout.slots, layout.query_lengths, layout.reach, layout.samples, layout.admissions):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
