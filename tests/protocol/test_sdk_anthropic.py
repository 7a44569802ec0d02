"""The real Anthropic client against a live server: what it parses is what we said."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepahead import FinishReason, QueueFullError, RequestFailedError

from .answers import CALL, CUT_CALL, SCHEMA, THOUGHT
from .fake_engine import FakeEngine, Script
from .live_server import live

anthropic = pytest.importorskip("anthropic")

TOOLS = [{"name": "get_weather", "description": "weather", "input_schema": SCHEMA}]
ASK: list[Any] = [{"role": "user", "content": "Weather?"}]
THINKING = {"type": "enabled", "budget_tokens": 2000}
PIXEL = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(b"x").decode()}
SEEN: list[Any] = [{"role": "user", "content": [{"type": "image", "source": PIXEL}]}]


@contextlib.asynccontextmanager
async def client(engine: Any, **options: Any) -> AsyncIterator[Any]:
    async with (
        live(engine, **options) as address,
        anthropic.AsyncAnthropic(base_url=address, api_key="key", max_retries=0) as connected,
    ):
        yield connected


def message(connected: Any, **fields: Any) -> Any:
    return connected.messages.create(**{"model": "stepahead", "max_tokens": 4000, "messages": ASK} | fields)


async def test_message_with_thinking() -> None:
    engine = FakeEngine(Script(THOUGHT))
    async with client(engine) as connected:
        answer = await message(connected, system="Be brief.", thinking=THINKING)
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert (answer.content[0].thinking, answer.content[1].text) == ("Let me see.", "It is sunny.")
    assert answer.stop_reason == "end_turn"
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens == len(engine.prompts[0])
    assert "Be brief." in engine.prompt_text()


async def test_stop_sequence() -> None:
    async with client(FakeEngine(Script("It is sunny. STOP more"))) as connected:
        answer = await message(connected, thinking={"type": "disabled"}, stop_sequences=["STOP"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "STOP")
    assert answer.content[0].text == "It is sunny. "


async def test_stream() -> None:
    async with client(FakeEngine(Script(CALL))) as connected:
        helper = connected.messages.stream(
            model="stepahead", max_tokens=4000, messages=ASK, tools=TOOLS, thinking=THINKING
        )
        async with helper as stream:
            kinds = [event.type async for event in stream]
            final = await stream.get_final_message()
    assert kinds[0] == "message_start"
    assert kinds[-1] == "message_stop"
    assert {"thinking", "text", "input_json"} <= set(kinds)
    assert [block.type for block in final.content] == ["thinking", "text", "tool_use"]
    assert final.content[2].input == {"city": "Paris", "days": 2}
    assert final.stop_reason == "tool_use"
    assert final.usage.output_tokens > 0


async def test_raw_events() -> None:
    async with client(FakeEngine(Script(THOUGHT))) as connected:
        events = [event async for event in await message(connected, stream=True)]
    assert [event.type for event in events if event.type.startswith("message")] == [
        "message_start",
        "message_delta",
        "message_stop",
    ]
    texts = [event.delta.text for event in events if getattr(getattr(event, "delta", None), "text", None)]
    assert "".join(texts) == "It is sunny."


async def test_a_tool_call_and_its_result() -> None:
    engine = FakeEngine(Script(CALL), Script("x</think>Sunny in Paris."))
    async with client(engine) as connected:
        asked = await message(connected, tools=TOOLS)
        used = asked.content[2]
        result = {"type": "tool_result", "tool_use_id": used.id, "content": "sunny"}
        messages = [
            *ASK,
            {"role": "assistant", "content": asked.content},
            {"role": "user", "content": [result]},
        ]
        answer = await message(connected, messages=messages, tools=TOOLS)
    assert answer.content[-1].text == "Sunny in Paris."
    assert "<tool_result>sunny</tool_result>" in engine.prompt_text()
    assert "I should look." in engine.prompt_text()


async def test_a_truncated_call_is_not_done() -> None:
    async with client(FakeEngine(Script(CUT_CALL, FinishReason.LENGTH))) as connected:
        answer = await message(connected, tools=TOOLS)
    assert answer.stop_reason == "max_tokens"


async def test_count_tokens() -> None:
    engine = FakeEngine()
    async with client(engine) as connected:
        count = await connected.messages.count_tokens(model="stepahead", messages=ASK, tools=TOOLS)
        await message(connected, tools=TOOLS)
    assert count.input_tokens == len(engine.prompts[0])


async def test_errors_are_the_clients_classes() -> None:
    engine = FakeEngine()
    async with client(engine) as connected:
        with pytest.raises(anthropic.BadRequestError, match="temperature"):
            await message(connected, extra_body={"temperature": 3})
        with pytest.raises(anthropic.BadRequestError, match="see images"):
            await message(connected, messages=SEEN)
        engine.refusal = QueueFullError(3, 2.0)
        with pytest.raises(anthropic.RateLimitError) as refused:
            await message(connected)
        assert refused.value.response.headers["retry-after"] == "2"
    async with client(engine, api_keys=("other",)) as connected:
        with pytest.raises(anthropic.AuthenticationError):
            await message(connected)


async def test_an_error_in_the_middle_of_a_stream_is_raised() -> None:
    async with client(FakeEngine(Script("a", error=RequestFailedError("the model")))) as connected:
        stream = await message(connected, stream=True)
        with pytest.raises(anthropic.APIError, match="failed in the model"):
            [event async for event in stream]


async def test_leaving_a_stream_ends_the_request() -> None:
    engine = FakeEngine(Script("word " * 200))
    async with client(engine) as connected:
        stream = await message(connected, stream=True, thinking={"type": "disabled"})
        async for event in stream:
            if event.type == "content_block_delta":
                engine.gate = asyncio.Event()
                break
        await stream.close()
        async with asyncio.timeout(5):
            await engine.streams[-1].closing.wait()


async def test_pings_of_a_silent_stream_are_no_news() -> None:
    engine = FakeEngine(Script(THOUGHT))
    engine.gate = asyncio.Event()
    async with client(engine, keep_alive_seconds=0.01) as connected:
        asyncio.get_running_loop().call_later(0.1, engine.gate.set)
        async with connected.messages.stream(model="stepahead", max_tokens=4000, messages=ASK) as stream:
            assert (await stream.get_final_message()).content[1].text == "It is sunny."
