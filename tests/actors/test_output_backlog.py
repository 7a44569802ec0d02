"""An output actor that fell behind serves waiting steps of the same rows together, and loses nothing."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from stepahead import SamplingParams
from stepahead.actors.delta_channel import DeltaChannel
from stepahead.actors.messages import RequestCancelled, StepCommitted, StreamOpened
from stepahead.actors.output import TOGETHER, TURNS, Output
from stepahead.devices.clock import run_virtual
from stepahead.engine.model.runner import BatchLayout
from stepahead.engine.sampling.commit import RUNNING, STOP, StepCommit
from stepahead.engine.tracing.clock import real_clock
from stepahead.engine.tracing.recorder import SILENT, Recorder
from stepahead.engine.types import FinishReason, Request
from tests.actors.hashed_engine import as_request

KEYS = (1, 2)


def layout() -> BatchLayout:
    count = len(KEYS)
    keys = np.array(KEYS, dtype=np.int64)
    ones = np.ones(count, dtype=np.int32)
    return BatchLayout(
        slots=keys.astype(np.int32),
        sequence_keys=keys,
        admissions=keys,
        query_lengths=ones,
        row_starts=np.arange(count, dtype=np.int32),
        reach=ones,
        samples=np.ones(count, dtype=np.bool_),
        decode_count=count,
        rows=count,
    )


def commit(
    step: int, rows: BatchLayout, tokens: tuple[int, int], finish: int = int(RUNNING)
) -> StepCommitted:
    """Both sequences get a token; `finish` is the first one's."""
    none = np.zeros(len(KEYS), dtype=np.int32)
    ends = np.array([finish, RUNNING], dtype=np.int8)
    return StepCommitted(
        commit=StepCommit(
            step=step,
            layout=rows,
            tokens=np.array(tokens, dtype=np.int32)[:, None],
            counts=none + 1,
            advanced=none + 1,
            finish=ends,
            drafted=none,
            accepted=none,
            any_finish=bool(ends.any()),
        )
    )


def request(key: int) -> Request:
    return msgspec.structs.replace(as_request([3], SamplingParams(seed=0)), key=key)


class Inbox:
    """Stands for the scheduler's mailbox."""

    def __init__(self) -> None:
        self.messages: list[RequestCancelled] = []

    def post(self, message: RequestCancelled) -> None:
        self.messages.append(message)

    async def send(self, message: RequestCancelled) -> None:
        self.post(message)


def served(
    *commits: StepCommitted, trace: Recorder = SILENT
) -> tuple[list[list[tuple[int, ...]]], list[FinishReason | None], int]:
    """Token ids by delta of each sequence, the last reason of each, and steps counted."""

    async def serve() -> tuple[list[list[tuple[int, ...]]], list[FinishReason | None], int]:
        output = Output(None, draft_tokens=0, slow_reader="coalesce", unread_tokens=100, capacity=100)
        output.connect(Inbox())
        output.trace = trace
        channels = [DeltaChannel(1) for _ in KEYS]
        for key, channel in zip(KEYS, channels, strict=True):
            output.mailbox.post(StreamOpened(requests=(request(key),), channel=channel))
        for message in commits:
            output.mailbox.post(message)
        seen: list[list[tuple[int, ...]]] = [[] for _ in KEYS]
        reasons: list[FinishReason | None] = [None for _ in KEYS]

        async def read(number: int) -> None:
            while (delta := await channels[number].read()) is not None:
                seen[number].append(delta.token_ids)
                reasons[number] = delta.finish_reason

        tasks = [asyncio.create_task(work) for work in (output.run(), read(0), read(1))]
        await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return seen, reasons, output.totals.steps

    return run_virtual(serve())


def test_steps_of_the_same_rows_that_wait_become_one_delta() -> None:
    rows = layout()
    seen, _, steps = served(*(commit(step, rows, (10 + step, 20 + step)) for step in range(4)))
    assert seen == [[(10, 11, 12, 13)], [(20, 21, 22, 23)]]
    assert steps == 4


def test_each_of_them_has_a_span_of_its_own() -> None:
    """Where the arrow of a step ends in a trace."""
    rows, trace = layout(), Recorder(real_clock(), 100)
    served(*(commit(step, rows, (10 + step, 20 + step)) for step in range(4)), trace=trace)
    spans = [record for record in trace.snapshot() if record[0] == "output.detokenize"]
    assert [step for _, _, _, step, _ in spans] == [0, 1, 2, 3]
    assert all(before[2] <= after[1] for before, after in pairwise(spans))


def test_other_rows_are_served_apart_and_in_order() -> None:
    first, second = layout(), layout()
    seen, _, steps = served(
        commit(0, first, (10, 20)), commit(1, second, (11, 21)), commit(2, first, (12, 22))
    )
    assert [token for delta in seen[0] for token in delta] == [10, 11, 12]
    assert [token for delta in seen[1] for token in delta] == [20, 21, 22]
    assert steps == 3


def test_a_long_backlog_is_served_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the loop is bounded, whatever waits."""
    together, serve = list[int](), Output._committed

    async def counted(output: Output, commits: list[StepCommit]) -> None:
        together.append(len(commits))
        await serve(output, commits)

    monkeypatch.setattr(Output, "_committed", counted)
    rows, most = layout(), 3 * TOGETHER - 1
    seen, _, steps = served(*(commit(step, rows, (step, step)) for step in range(most)))
    assert steps == most
    assert together == [TOGETHER, TOGETHER, TOGETHER - 1]
    assert [token for delta in seen[0] for token in delta] == list(range(most))


@pytest.mark.parametrize("ending", range(3))
def test_a_sequence_that_ends_among_them_hears_nothing_of_later_steps(ending: int) -> None:
    rows = layout()
    commits = [
        commit(step, rows, (10 + step, 20 + step), int(STOP) if step == ending else int(RUNNING))
        for step in range(4)
    ]
    seen, reasons, _ = served(*commits)
    assert [token for delta in seen[0] for token in delta] == list(range(10, 10 + ending))
    assert reasons == [FinishReason.STOP, None]
    assert seen[1] == [(20, 21, 22, 23)]


@pytest.mark.parametrize("waiting", [0, 3, 1000])
def test_streams_give_way_to_whoever_works_for_the_device(
    waiting: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many turns as they have messages, and not for ever."""
    monkeypatch.setattr("stepahead.actors.output.AT_ONCE", 2)
    turns: list[str] = []

    async def serve() -> None:
        output = Output(None, draft_tokens=0, slow_reader="coalesce", unread_tokens=100, capacity=100)
        left = [waiting]

        def next_step_waits() -> bool:
            turns.append("asked")
            left[0] -= 1
            return left[0] >= 0

        output.connect(Inbox(), next_step_waits)
        channels = [DeltaChannel(1) for _ in KEYS]
        for key, channel in zip(KEYS, channels, strict=True):
            output.mailbox.post(StreamOpened(requests=(request(key),), channel=channel))
        output.mailbox.post(commit(0, layout(), (10, 20)))

        async def read(number: int) -> None:
            await channels[number].read()
            turns.append(f"read {number}")

        tasks = [asyncio.create_task(work) for work in (read(0), read(1), output.run())]
        await asyncio.sleep(1.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run_virtual(serve())
    asked = min(waiting, TURNS) + (waiting < TURNS)
    assert turns == ["read 0", *["asked"] * asked, "read 1"]
