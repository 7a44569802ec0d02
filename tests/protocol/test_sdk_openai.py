"""The real OpenAI client against a live server: what it parses is what we said."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepahead import FinishReason, QueueFullError, RequestFailedError

from .answers import CALL, CUT_CALL, SCHEMA, THOUGHT
from .fake_engine import FakeEngine, Script
from .live_server import live

openai = pytest.importorskip("openai")

TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
FLAT_TOOLS = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}]
ASK: list[Any] = [{"role": "user", "content": "Weather?"}]
PIXEL = base64.b64encode(b"x").decode()
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
SEEN: list[Any] = [{"role": "user", "content": [PICTURE]}]


@contextlib.asynccontextmanager
async def client(engine: Any, **options: Any) -> AsyncIterator[Any]:
    async with (
        live(engine, **options) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="key", max_retries=0) as connected,
    ):
        yield connected


def chat(connected: Any, **fields: Any) -> Any:
    return connected.chat.completions.create(model="stepahead", messages=ASK, **fields)


async def test_chat_completion() -> None:
    async with client(FakeEngine(Script(THOUGHT))) as connected:
        answer = await chat(connected, logprobs=True, top_logprobs=1)
    message = answer.choices[0].message
    assert (message.reasoning_content, message.content) == ("Let me see.", "It is sunny.")
    assert answer.choices[0].logprobs.content[0].top_logprobs[0].logprob == -0.5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_chat_stream() -> None:
    async with client(FakeEngine(Script(THOUGHT))) as connected:
        stream = await chat(connected, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "It is sunny."
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Let me see."
    assert chunks[-1].usage.completion_tokens > 0
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


async def test_a_tool_call_and_its_result() -> None:
    engine = FakeEngine(Script(CALL), Script("x</think>Sunny in Paris."))
    async with client(engine) as connected:
        asked = await chat(connected, tools=TOOLS)
        message = asked.choices[0].message
        call = message.tool_calls[0]
        assert asked.choices[0].finish_reason == "tool_calls"
        assert json.loads(call.function.arguments) == {"city": "Paris", "days": 2}
        result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
        messages = [*ASK, message.model_dump(exclude_none=True), result]
        answer = await connected.chat.completions.create(model="stepahead", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "Sunny in Paris."
    assert "<tool_result>sunny</tool_result>" in engine.prompt_text()


async def test_the_streaming_helper_collects_tool_calls() -> None:
    async with client(FakeEngine(Script(CALL))) as connected:
        helper = connected.chat.completions.stream(model="stepahead", messages=ASK, tools=TOOLS)
        async with helper as stream:
            kinds = {event.type async for event in stream}
            completion = await stream.get_final_completion()
    assert "tool_calls.function.arguments.delta" in kinds
    call = completion.choices[0].message.tool_calls[0]
    assert json.loads(call.function.arguments) == {"city": "Paris", "days": 2}


async def test_a_truncated_call_is_not_done() -> None:
    async with client(FakeEngine(Script(CUT_CALL, FinishReason.LENGTH))) as connected:
        answer = await chat(connected, tools=TOOLS)
    assert answer.choices[0].finish_reason == "length"


async def test_choices() -> None:
    scripts = [Script("a</think>one"), Script("b</think>two")]
    async with client(FakeEngine(scripts)) as connected:
        answer = await chat(connected, n=2)
        assert [choice.message.content for choice in answer.choices] == ["one", "two"]
        stream = await chat(connected, n=2, stream=True)
        contents = ["", ""]
        async for chunk in stream:
            for choice in chunk.choices:
                contents[choice.index] += choice.delta.content or ""
    assert contents == ["one", "two"]


async def test_response() -> None:
    async with client(FakeEngine(Script(CALL))) as connected:
        answer = await connected.responses.create(model="stepahead", input="?", tools=FLAT_TOOLS)
        assert [item.type for item in answer.output] == ["reasoning", "message", "function_call"]
        assert answer.output_text == "Looking."
        assert json.loads(answer.output[2].arguments) == {"city": "Paris", "days": 2}
        assert answer.usage.output_tokens_details.reasoning_tokens > 0
        stored = await connected.responses.retrieve(answer.id)
        assert stored.output_text == "Looking."


async def test_response_stream() -> None:
    async with client(FakeEngine(Script(CALL))) as connected:
        helper = connected.responses.stream(model="stepahead", input="?", tools=FLAT_TOOLS)
        async with helper as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == final.output_text == "Looking."
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    call = final.output[2]
    assert json.loads(call.arguments) == {"city": "Paris", "days": 2}


async def test_a_response_is_gone_on_with() -> None:
    engine = FakeEngine(Script("a</think>one"), Script("b</think>two"))
    async with client(engine) as connected:
        first = await connected.responses.create(model="stepahead", input="first question")
        second = await connected.responses.create(
            model="stepahead", input="second question", previous_response_id=first.id
        )
        with pytest.raises(openai.BadRequestError, match="not found"):
            await connected.responses.create(model="stepahead", input="?", previous_response_id="resp_no")
    assert second.output_text == "two"
    text = engine.prompt_text()
    assert text.index("first question") < text.index("one") < text.index("second question")


async def test_errors_are_the_clients_classes() -> None:
    engine = FakeEngine()
    async with client(engine) as connected:
        with pytest.raises(openai.BadRequestError, match="temperature"):
            await chat(connected, temperature=3)
        with pytest.raises(openai.BadRequestError, match="see images"):
            await connected.chat.completions.create(model="stepahead", messages=SEEN)
        with pytest.raises(openai.NotFoundError):
            await connected.models.retrieve("other")
        engine.refusal = QueueFullError(3, 2.0)
        with pytest.raises(openai.RateLimitError) as refused:
            await chat(connected)
        assert refused.value.response.headers["retry-after"] == "2"
    async with client(engine, api_keys=("other",)) as connected:
        with pytest.raises(openai.AuthenticationError):
            await chat(connected)


async def test_an_error_in_the_middle_of_a_stream_is_raised() -> None:
    async with client(FakeEngine(Script("a", error=RequestFailedError("the model")))) as connected:
        stream = await chat(connected, stream=True)
        with pytest.raises(openai.APIError, match="failed in the model"):
            [chunk async for chunk in stream]
        stream = await connected.responses.create(model="stepahead", input="?", stream=True)
        with pytest.raises(openai.APIError, match="failed in the model"):
            [event async for event in stream]


async def test_leaving_a_stream_ends_the_request() -> None:
    engine = FakeEngine(Script("word " * 200))
    async with client(engine) as connected:
        stream = await chat(connected, stream=True, extra_body={"thinking": {"type": "disabled"}})
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                engine.gate = asyncio.Event()
                break
        await stream.close()
        await _closed(engine)
        with pytest.raises(openai.APITimeoutError):
            await chat(connected, timeout=0.2)
        await _closed(engine)


async def _closed(engine: FakeEngine) -> None:
    async with asyncio.timeout(5):
        await engine.streams[-1].closing.wait()


async def test_the_client_without_a_loop() -> None:
    def ask(address: str) -> str:
        with openai.OpenAI(base_url=f"{address}/v1", api_key="key", max_retries=0) as connected:
            stream = connected.chat.completions.create(model="stepahead", messages=ASK, stream=True)
            return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    async with live(FakeEngine(Script(THOUGHT))) as address:
        assert await asyncio.to_thread(ask, address) == "It is sunny."


async def test_models() -> None:
    async with client(FakeEngine()) as connected:
        assert "stepahead" in [model.id async for model in connected.models.list()]
        assert (await connected.models.retrieve("stepahead")).id == "stepahead"
