"""The application over a scripted engine: every protocol, streaming and not, and what goes wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepahead import EngineClosedError, FinishReason, QueueFullError, RequestFailedError
from stepahead.recipe.conversation import UserMessage
from stepahead.recipe.server.options import ServerOptions
from stepahead.recipe.server.store import ResponseStore

from .answers import CALL, CUT_CALL, SCHEMA, THOUGHT
from .application import create_app
from .asgi_client import Answer, call
from .fake_engine import FakeEngine, Script

CHAT_TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
OFF = {"type": "disabled"}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "stepahead", "messages": [{"role": "user", "content": "Weather?"}], **fields}


async def post(engine: FakeEngine, path: str, body: Any, **options: Any) -> Answer:
    return await call(create_app(engine, ServerOptions(**options)), "POST", path, body)


async def post_chat(engine: FakeEngine, **fields: Any) -> Answer:
    return await post(engine, "/v1/chat/completions", chat(**fields))


async def test_chat_answers_with_its_reasoning_and_usage() -> None:
    engine = FakeEngine(Script(THOUGHT))
    body = (await post_chat(engine)).json()
    message = body["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Let me see.", "It is sunny.")
    assert body["choices"][0]["finish_reason"] == "stop"
    usage, prompt = body["usage"], len(engine.prompts[0])
    assert usage["prompt_tokens"] == prompt
    assert usage["prompt_tokens_details"]["cached_tokens"] == prompt // 2
    assert usage["completion_tokens"] == len(Script(THOUGHT).token_ids)
    assert 0 < usage["completion_tokens_details"]["reasoning_tokens"] < usage["completion_tokens"]


async def test_chat_streams_what_it_would_answer() -> None:
    whole = (await post_chat(FakeEngine(Script(CALL)), tools=[CHAT_TOOL])).json()
    streamed = await post_chat(FakeEngine(Script(CALL)), tools=[CHAT_TOOL], stream=True)
    assert streamed.headers["content-type"].startswith("text/event-stream")
    events = [data for _, data in streamed.events()]
    assert events[-1] == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in events[:-1]]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == message["content"] == "Looking."
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == message["reasoning_content"]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    arguments = "".join(call["function"]["arguments"] for call in calls)
    assert arguments == message["tool_calls"][0]["function"]["arguments"] == '{"city": "Paris", "days": 2}'
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert events[-2]["usage"] == whole["usage"]


async def test_messages_streams_and_answers() -> None:
    tool = {"name": "get_weather", "input_schema": SCHEMA}
    body = {
        "model": "stepahead",
        "max_tokens": 500,
        "messages": [{"role": "user", "content": "?"}],
        "tools": [tool],
    }
    whole = (await post(FakeEngine(Script(CALL)), "/v1/messages", body)).json()
    assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
    assert whole["content"][2]["input"] == {"city": "Paris", "days": 2}
    assert whole["stop_reason"] == "tool_use"
    streamed = await post(FakeEngine(Script(CALL)), "/v1/messages", {**body, "stream": True})
    names = [name for name, _ in streamed.events()]
    assert names[0] == "message_start"
    assert names[-2:] == ["message_delta", "message_stop"]


async def test_responses_streams_and_answers() -> None:
    body = {
        "model": "stepahead",
        "input": "?",
        "tools": [{"type": "function", "name": "get_weather", "parameters": SCHEMA}],
    }
    whole = (await post(FakeEngine(Script(CALL)), "/v1/responses", body)).json()
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    assert whole["status"] == "completed"
    streamed = await post(FakeEngine(Script(CALL)), "/v1/responses", {**body, "stream": True})
    events = [data for _, data in streamed.events()]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    last = events[-1]["response"]
    assert [item["type"] for item in last["output"]] == ["reasoning", "message", "function_call"]


async def test_several_choices_share_one_prompt_and_one_usage() -> None:
    scripts = [Script("one</think>A"), Script("two</think>BB")]
    body = (await post_chat(FakeEngine(scripts), n=2)).json()
    assert [choice["message"]["content"] for choice in body["choices"]] == ["A", "BB"]
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == sum(len(script.token_ids) for script in scripts)
    events = [data for _, data in (await post_chat(FakeEngine(scripts), n=2, stream=True)).events()][:-1]
    assert [event["usage"] for event in events if event.get("usage")] == [body["usage"]]


async def test_logprobs_are_of_the_shown_tokens() -> None:
    answer = await post_chat(FakeEngine(Script("a</think>It is")), logprobs=True, top_logprobs=1)
    logprobs = answer.json()["choices"][0]["logprobs"]
    assert "".join(item["token"] for item in logprobs["content"]) == "It is"
    assert "".join(item["token"] for item in logprobs["reasoning_content"]) == "a"
    assert all(len(item["top_logprobs"]) == 1 for item in logprobs["content"])


async def test_a_stop_sequence_ends_the_request_in_the_engine() -> None:
    engine = FakeEngine(Script("It is sunny. STOP and more", FinishReason.LENGTH))
    body = (await post_chat(engine, stop=["STOP"], thinking=OFF)).json()
    assert body["choices"][0]["message"]["content"] == "It is sunny. "
    assert body["choices"][0]["finish_reason"] == "stop"
    assert engine.streams[0].closed
    assert body["usage"]["completion_tokens"] < len(Script("It is sunny. STOP and more").token_ids)


async def test_a_call_that_was_cut_off_is_no_call_to_be_made() -> None:
    for finish, reason in ((FinishReason.LENGTH, "length"), (FinishReason.STOP, "stop")):
        choice = (await post_chat(FakeEngine(Script(CUT_CALL, finish)), tools=[CHAT_TOOL])).json()["choices"][
            0
        ]
        assert choice["finish_reason"] == reason
        assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "Par'


async def test_sampling_reaches_the_engine() -> None:
    engine = FakeEngine()
    fields = {"temperature": 0.5, "top_p": 0.5, "seed": 7, "max_completion_tokens": 9, "top_k": 3}
    await post_chat(engine, presence_penalty=0.25, frequency_penalty=-0.5, logit_bias={"42": 5}, **fields)
    params = engine.params[0]
    assert (params.temperature, params.top_p, params.seed, params.max_tokens, params.top_k) == (
        0.5,
        0.5,
        7,
        9,
        3,
    )
    assert (params.presence_penalty, params.frequency_penalty) == (0.25, -0.5)
    assert params.logit_bias == {42: 5.0}
    begin, end = engine.tokenizer.begin_id, engine.tokenizer.end_id
    assert begin in params.banned_token_ids
    assert end not in params.banned_token_ids


async def test_official_behaviour_is_a_switch() -> None:
    engine = FakeEngine()
    body = chat(temperature=0.5, max_completion_tokens=9)
    await post(engine, "/v1/chat/completions", body, official=True)
    assert engine.params[0].temperature == 1.0
    assert engine.params[0].max_tokens == 65536
    answer = await post(engine, "/v1/chat/completions", chat(n=2), official=True)
    assert answer.json()["error"]["message"] == "Invalid n value (currently only n = 1 is supported)"


async def test_what_cannot_be_enforced_is_refused() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    strict = {"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}
    for fields in (
        {"response_format": schema},
        {"tools": [strict]},
        {"response_format": {"type": "regex", "regex": "a"}},
    ):
        answer = await post_chat(FakeEngine(), **fields)
        assert (answer.status, answer.json()["error"]["code"]) == (400, "unsupported_parameter")


async def test_a_response_can_be_gone_on_with() -> None:
    engine = FakeEngine(Script(CALL), Script("ok</think>Sunny."))
    app = create_app(engine)
    tools = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]
    first = (
        await call(app, "POST", "/v1/responses", {"model": "stepahead", "input": "Weather?", "tools": tools})
    ).json()
    call_id = first["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
    body = {"model": "stepahead", "input": [output], "tools": tools, "previous_response_id": first["id"]}
    second = (await call(app, "POST", "/v1/responses", body)).json()
    assert second["output"][-1]["content"][0]["text"] == "Sunny."
    assert second["previous_response_id"] == first["id"]
    assert "Weather?" in engine.prompt_text()
    assert "<tool_result>sunny</tool_result>" in engine.prompt_text()
    stored = await call(app, "GET", f"/v1/responses/{second['id']}")
    assert stored.json() == second
    unknown = await call(app, "POST", "/v1/responses", {**body, "previous_response_id": "resp_no"})
    assert unknown.json()["error"]["code"] == "previous_response_not_found"


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (QueueFullError(9, 2.4), 429, "2"),
        (EngineClosedError(), 503, "1"),
        (RequestFailedError("x"), 500, None),
    ],
)
async def test_refusals_of_the_engine_are_statuses(
    error: Exception, status: int, retry_after: str | None
) -> None:
    engine = FakeEngine()
    engine.refusal = error
    answer = await post_chat(engine, stream=True)
    assert (answer.status, answer.headers.get("retry-after")) == (status, retry_after)
    assert answer.json()["error"]["message"] == str(error)


async def test_an_error_in_the_middle_is_the_last_event() -> None:
    engine = FakeEngine(Script("a", error=RequestFailedError("the model")))
    events = (await post_chat(engine, stream=True)).events()
    assert events[-1][1]["error"]["message"] == "the request failed in the model"
    body = {"model": "stepahead", "messages": [{"role": "user", "content": "?"}], "stream": True}
    engine = FakeEngine(Script("a", error=RequestFailedError("the model")))
    name, data = (await post(engine, "/v1/messages", body)).events()[-1]
    assert (name, data["type"]) == ("error", "error")


async def test_a_client_that_hangs_up_ends_its_request() -> None:
    for stream in (True, False):
        engine, gone = FakeEngine(), asyncio.Event()
        engine.gate = asyncio.Event()
        engine.on_stream = gone.set
        app = create_app(engine)
        await call(app, "POST", "/v1/chat/completions", chat(stream=stream), hang_up=gone)
        assert engine.streams[0].closed


async def test_a_silent_stream_says_that_it_lives() -> None:
    engine = FakeEngine()
    engine.gate = asyncio.Event()
    asyncio.get_running_loop().call_later(0.05, engine.gate.set)
    answer = await post(engine, "/v1/chat/completions", chat(stream=True), keep_alive_seconds=0.01)
    assert b": keep-alive\n\n" in answer.body


async def test_keys_are_required_where_there_are_any() -> None:
    app = create_app(FakeEngine(), ServerOptions(api_keys=("one", "two")))
    for headers, status in (
        ({}, 401),
        ({"authorization": "Bearer three"}, 401),
        ({"authorization": "Bearer two"}, 200),
        ({"x-api-key": "one"}, 200),
    ):
        answer = await call(app, "POST", "/v1/chat/completions", chat(), headers=headers)
        assert answer.status == status
    assert (await call(app, "GET", "/health")).status == 200


async def test_limits_of_size_and_number() -> None:
    answer = await post(FakeEngine(), "/v1/chat/completions", chat(), max_body_bytes=20)
    assert answer.status == 413
    answer = await post(FakeEngine(), "/v1/chat/completions", chat(), max_concurrent_requests=0)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_prompt_and_answer_must_fit_the_context() -> None:
    answer = await post(FakeEngine(), "/v1/chat/completions", chat(max_tokens=100), context_limit=50)
    assert answer.status == 400
    assert "maximum context length is 50 tokens" in answer.json()["error"]["message"]


async def test_users_can_be_kept_apart() -> None:
    engine = FakeEngine()
    await post(engine, "/v1/chat/completions", chat(user="u1"), isolate_users=True)
    await post(engine, "/v1/chat/completions", chat(user="u1"))
    assert engine.salts == ["u1", ""]


async def test_sessions_and_how_long_to_remember_reach_the_cache() -> None:
    engine = FakeEngine()
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    for body in (
        chat(),
        chat(user="u1", tools=tools),
        chat(prompt_cache_key="c1", user="u1", prompt_cache_retention="24h"),
        chat(tools=tools, prompt_cache_retention="in_memory"),
    ):
        assert (await post(engine, "/v1/chat/completions", body)).status == 200
    assert engine.kept_as == [("", "chat"), ("u1", "agent"), ("c1", "agent"), ("", "chat")]
    refused = await post(engine, "/v1/chat/completions", chat(prompt_cache_retention="for ever"))
    assert (refused.status, refused.json()["error"]["type"]) == (400, "unsupported_parameter")


async def test_the_rest_of_the_face() -> None:
    app = create_app(FakeEngine())
    models = (await call(app, "GET", "/v1/models")).json()
    assert "stepahead" in [model["id"] for model in models["data"]]
    assert (await call(app, "GET", "/v1/models/stepahead")).status == 200
    assert (await call(app, "GET", "/v1/models/other")).status == 404
    assert (await call(app, "GET", "/health")).json()["state"] == "ready"
    body = {"model": "stepahead", "messages": [{"role": "user", "content": "?"}]}
    count = await call(app, "POST", "/v1/messages/count_tokens", body)
    assert count.json()["input_tokens"] > 3
    assert (await call(app, "GET", "/v1/chat/completions")).status == 405


async def test_it_can_be_mounted_and_wrapped() -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    seen: list[str] = []

    class Middleware:
        def __init__(self, app: Any, name: str) -> None:
            self.app, self.name = app, name

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            seen.append(self.name)
            await self.app(scope, receive, send)

    app = create_app(FakeEngine(Script(THOUGHT)))
    app.add_middleware(Middleware, name="outer")
    whole = Starlette(routes=[Mount("/llm", app)])
    answer = await call(whole, "POST", "/llm/v1/chat/completions", chat())
    assert answer.json()["choices"][0]["message"]["content"] == "It is sunny."
    assert seen == ["outer"]
    for path, status in (("/llm/v1/other", 404), ("/llm/v1/messages", 405)):
        refused = await call(whole, "GET", path)
        assert (refused.status, refused.json()["type"]) == (status, "error")


async def test_metrics_count_requests() -> None:
    app = create_app(FakeEngine())
    await call(app, "POST", "/v1/chat/completions", chat())
    await call(app, "POST", "/v1/chat/completions", b"{")
    text = (await call(app, "GET", "/metrics")).body.decode()
    assert 'stepahead_http_requests_total{path="/v1/chat/completions",status="200"} 1.0' in text
    assert 'stepahead_http_requests_total{path="/v1/chat/completions",status="400"} 1.0' in text
    assert "stepahead_http_requests_running 0.0" in text


def test_stored_responses_are_bounded() -> None:
    store = ResponseStore(max_responses=3, max_characters=100)
    for number in range(5):
        store.put(f"r{number}", {"id": f"r{number}"}, (UserMessage("x" * 20),))
    assert [store.get(f"r{number}") is not None for number in range(5)] == [False, False, True, True, True]
    store.put("long", {}, (UserMessage("x" * 90),))
    assert store.get("r4") is None
    assert store.get("long") is not None
    store.put("longer", {}, (UserMessage("x" * 101),))
    assert store.get("longer") is None
    assert store.delete("long") is False
