"""The channel between the output actor and one reader: merging, ends, errors, and who may read."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from stepahead import FinishReason, StreamInUseError, Usage
from stepahead.actors.delta_channel import DeltaChannel, LogprobRows

USAGE = Usage(
    prompt_tokens=1,
    cached_tokens=0,
    output_tokens=1,
    drafted_tokens=0,
    accepted_tokens=0,
    preemptions=0,
    queue_seconds=0.0,
    first_token_seconds=None,
)


async def test_what_was_not_read_is_one_delta() -> None:
    channel = DeltaChannel(1)
    assert not channel.write(0, "a", (1,))
    assert channel.write(0, "b", (2, 3))
    assert channel.unread_tokens == 3
    channel.finish(0, FinishReason.STOP, USAGE)
    delta = await channel.read()
    assert delta is not None
    assert (delta.text, delta.token_ids, delta.finish_reason, delta.usage) == (
        "ab", (1, 2, 3), FinishReason.STOP, USAGE,
    )  # fmt: skip
    assert channel.unread_tokens == 0
    assert channel.ended
    assert await channel.read() is None
    assert await channel.read() is None


async def test_choices_are_read_in_the_order_of_their_news_and_end_alone() -> None:
    channel = DeltaChannel(2)
    channel.write(1, "x", (1,))
    channel.write(0, "y", (2,))
    channel.finish(1, FinishReason.LENGTH, USAGE)
    channel.write(1, "late", (9,))
    channel.finish(1, FinishReason.STOP, USAGE)
    first, second = await channel.read(), await channel.read()
    assert first is not None
    assert second is not None
    assert (first.index, first.text, first.finish_reason) == (1, "x", FinishReason.LENGTH)
    assert (second.index, second.text, second.finish_reason) == (0, "y", None)
    assert not channel.ended
    channel.finish(0, FinishReason.STOP, USAGE)
    last = await channel.read()
    assert last is not None
    assert (last.index, last.text, last.finish_reason) == (0, "", FinishReason.STOP)
    assert await channel.read() is None


async def test_an_error_comes_after_what_was_written_and_once() -> None:
    channel = DeltaChannel(2)
    channel.write(0, "a", (1,))
    channel.fail(lambda: LookupError("mine"))
    channel.fail(lambda: LookupError("another"))
    channel.finish(1, FinishReason.STOP, USAGE)
    delta = await channel.read()
    assert delta is not None
    assert (delta.text, delta.finish_reason) == ("a", None)
    with pytest.raises(LookupError, match="mine"):
        await channel.read()
    assert await channel.read() is None


async def test_an_error_after_the_end_is_not_heard() -> None:
    channel = DeltaChannel(1)
    channel.finish(0, FinishReason.STOP, USAGE)
    channel.fail(lambda: LookupError("too late"))
    assert (await channel.read()) is not None
    assert (await channel.read()) is None


async def test_a_waiting_reader_is_woken_and_has_no_company() -> None:
    channel = DeltaChannel(1)
    reading = asyncio.create_task(channel.read())
    await asyncio.sleep(0)
    assert channel.in_use
    with pytest.raises(StreamInUseError):
        await channel.read()
    channel.write(0, "a", (1,))
    delta = await reading
    assert delta is not None
    assert delta.text == "a"
    assert not channel.in_use


async def test_a_cancelled_reader_leaves_the_channel_free() -> None:
    channel = DeltaChannel(1)
    reading = asyncio.create_task(channel.read())
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not channel.in_use
    channel.write(0, "a", (1,))
    assert (await channel.read()) is not None


async def test_logprobs_of_several_steps_line_up_with_their_tokens() -> None:
    channel = DeltaChannel(1)
    top = np.array([[-0.1, -2.0]], dtype=np.float32)
    channel.write(0, "", (7,), LogprobRows(np.array([-0.5], np.float32), top, np.array([[7, 8]], np.int32)))
    channel.write(0, "", (4, 5), LogprobRows(np.array([-1.0, -np.inf], np.float32), None, None))
    delta = await channel.read()
    assert delta is not None
    assert delta.logprobs is not None
    assert [(entry.token_id, entry.logprob) for entry in delta.logprobs] == [
        (7, -0.5),
        (4, -1.0),
        (5, -9999.0),
    ]
    assert [token for token, _ in delta.logprobs[0].top] == [7, 8]
