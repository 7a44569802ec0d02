"""The real clients against the model that ships: whatever it says, what they parse adds up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepahead import Engine

from .live_server import live

openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

ASK: list[Any] = [{"role": "user", "content": "Once upon a time there was a dragon."}]
PARAMETERS = {"type": "object", "properties": {"name": {"type": "string"}}}
CHAT_TOOL = {"type": "function", "function": {"name": "tell", "parameters": PARAMETERS}}


@pytest.mark.slow
async def test_both_clients_on_one_engine() -> None:
    async with (
        Engine.open() as engine,
        live(engine) as address,
        openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="key", max_retries=0) as one,
        anthropic.AsyncAnthropic(base_url=address, api_key="key", max_retries=0) as other,
    ):
        await asyncio.gather(_chat(one), _tools(one), _responses(one), _messages(other), _cancel(one, engine))
        for _ in range(100):
            if engine.stats().running == 0:
                break
            await asyncio.sleep(0.05)
        assert engine.stats().running == 0
        counted = await other.messages.count_tokens(model="stepahead", messages=ASK)
        answer = await other.messages.create(model="stepahead", messages=ASK, max_tokens=1)
        usage = answer.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens


async def _chat(client: Any) -> None:
    fields = {"model": "stepahead", "messages": ASK, "max_tokens": 16, "seed": 5}
    for extra in ({}, {"extra_body": {"thinking": {"type": "disabled"}}}):
        whole = await client.chat.completions.create(**fields, **extra, logprobs=True)
        stream = await client.chat.completions.create(**fields, **extra, stream=True)
        chunks = [chunk async for chunk in stream]
        message = whole.choices[0].message
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert "".join(delta.content or "" for delta in deltas) == (message.content or "")
        reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
        assert reasoning == (getattr(message, "reasoning_content", None) or "")
        assert whole.usage.completion_tokens <= 16
        assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason


async def _tools(client: Any) -> None:
    answer = await client.chat.completions.create(
        model="stepahead", messages=ASK, max_tokens=8, tools=[CHAT_TOOL], n=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1]


async def _responses(client: Any) -> None:
    first = await client.responses.create(model="stepahead", input="Tell me a story.", max_output_tokens=8)
    second = await client.responses.create(
        model="stepahead", input="Go on.", max_output_tokens=8, previous_response_id=first.id
    )
    assert second.usage.input_tokens > first.usage.input_tokens


async def _messages(client: Any) -> None:
    async with client.messages.stream(model="stepahead", messages=ASK, max_tokens=16) as stream:
        text = [part async for part in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(text) == "".join(block.text for block in final.content if block.type == "text")
    assert final.usage.output_tokens <= 16


async def _cancel(client: Any, engine: Engine) -> None:
    stream = await client.chat.completions.create(
        model="stepahead", messages=ASK, max_tokens=4000, stream=True
    )
    async for _ in stream:
        break
    await stream.close()
