"""Which tokens of a step count, and what they end."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from stepahead.engine.model.runner import NO_TOKEN, StepResult
from stepahead.engine.sampling.commit import FAILED, LENGTH, RUNNING, STOP, StepCommit, resolve
from stepahead.engine.sampling.table import SamplingTable

from .core_driver import Setup
from .test_sampling_table import layout_of, occupant

DRAFTS = 2


def commit_of(
    tokens: list[int],
    *,
    output: int = 0,
    max_output: int = 100,
    end_ids: tuple[int, ...] = (),
    finite: bool = True,
    prompt_rows: int = 0,
    samples: bool = True,
) -> tuple[StepCommit, SamplingTable]:
    """One row in slot 2; `prompt_rows` makes it a chunk of a prompt."""
    table = SamplingTable(Setup(draft_tokens=DRAFTS).shape())
    table.occupy([occupant(2, output=output, max_output=max_output, end_ids=end_ids)])
    layout = layout_of(2, samples=(samples,))
    if prompt_rows:
        rows = np.array([prompt_rows], dtype=np.int32)
        layout = msgspec.structs.replace(layout, decode_count=0, query_lengths=rows, reach=rows)
    padded = tokens + [NO_TOKEN] * (DRAFTS + 1 - len(tokens))
    result = StepResult(
        step=3,
        tokens=np.array([padded], dtype=np.int32),
        emitted=np.array([len(tokens)], dtype=np.int32),
        drafted=np.array([0 if prompt_rows else DRAFTS], dtype=np.int32),
        positions=np.zeros(1, dtype=np.int32),
        finite=np.array([finite]),
    )
    return resolve(layout, result, table), table


@pytest.mark.parametrize(
    ("tokens", "output", "max_output", "end_ids", "count", "finish"),
    [
        ([5], 0, 100, (), 1, RUNNING),
        ([5, 6, 7], 0, 100, (9,), 3, RUNNING),
        ([5, 9, 7], 0, 100, (9,), 2, STOP),
        ([9, 9, 9], 0, 100, (9,), 1, STOP),
        ([5, 6, 9], 0, 100, (8, 9), 3, STOP),
        ([5, 6, 7], 8, 10, (), 2, LENGTH),
        ([5, 6], 8, 10, (), 2, LENGTH),
        ([5, 9], 8, 10, (9,), 2, STOP),  # the last allowed token is an end id
        ([5, 6, 9], 8, 10, (9,), 2, LENGTH),  # the end id comes too late
        ([5], 10, 10, (), 0, LENGTH),  # it ended a step ago
        ([5], 10, 10, (5,), 0, LENGTH),
    ],
)
def test_decode_rows(
    tokens: list[int], output: int, max_output: int, end_ids: tuple[int, ...], count: int, finish: int
) -> None:
    commit, table = commit_of(tokens, output=output, max_output=max_output, end_ids=end_ids)
    assert (commit.counts.tolist(), commit.advanced.tolist()) == ([count], [count])
    assert commit.finish.tolist() == [finish]
    assert commit.any_finish == (finish != RUNNING)
    assert (commit.drafted.tolist(), commit.accepted.tolist()) == ([DRAFTS], [len(tokens) - 1])
    assert table.left[2] == max_output - output - count


@pytest.mark.parametrize(
    ("tokens", "samples", "max_output", "end_ids", "count", "finish"),
    [
        ([], False, 100, (), 0, RUNNING),
        ([], False, 0, (), 0, RUNNING),
        ([5], True, 100, (), 1, RUNNING),
        ([5], True, 100, (5,), 1, STOP),
        ([5], True, 1, (), 1, LENGTH),
        ([5], True, 0, (), 0, LENGTH),  # max_tokens 0: computed, cached, no token
        ([5], True, 0, (5,), 0, LENGTH),
    ],
)
def test_prompt_rows_advance_by_their_chunk(
    tokens: list[int], samples: bool, max_output: int, end_ids: tuple[int, ...], count: int, finish: int
) -> None:
    commit, _ = commit_of(tokens, prompt_rows=6, samples=samples, max_output=max_output, end_ids=end_ids)
    assert (commit.counts.tolist(), commit.advanced.tolist()) == ([count], [6])
    assert (commit.finish.tolist(), commit.any_finish) == ([finish], finish != RUNNING)
    assert commit.accepted.tolist() == [0]


@pytest.mark.parametrize("prompt_rows", [0, 6])
def test_a_row_without_finite_logits_fails_alone_and_gives_nothing(prompt_rows: int) -> None:
    commit, table = commit_of([9], finite=False, end_ids=(9,), prompt_rows=prompt_rows)
    assert (commit.counts.tolist(), commit.finish.tolist(), commit.any_finish) == ([0], [FAILED], True)
    assert table.left[2] == 100


def test_a_request_for_no_token_does_not_fail_for_want_of_one() -> None:
    commit, _ = commit_of([9], finite=False, prompt_rows=6, max_output=0)
    assert (commit.counts.tolist(), commit.finish.tolist()) == ([0], [LENGTH])


def test_the_end_ids_of_one_sequence_do_not_end_another() -> None:
    table = SamplingTable(Setup().shape())
    table.occupy([occupant(1, max_output=9, end_ids=(5,)), occupant(2, max_output=9, end_ids=(6,))])
    result = StepResult(
        step=0,
        tokens=np.array([[6], [6]], dtype=np.int32),
        emitted=np.ones(2, dtype=np.int32),
        drafted=np.zeros(2, dtype=np.int32),
        positions=np.zeros(2, dtype=np.int32),
        finite=np.ones(2, dtype=np.bool_),
    )
    commit = resolve(layout_of(1, 2), result, table)
    assert commit.finish.tolist() == [RUNNING, STOP]
