"""Request bodies of every kind, valid, or broken in one or two places.

Plain `random` instead of strategies: a mutation needs the whole body at hand, and what matters is how many
are tried. Tests draw the seed with hypothesis.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .random_json import (
    EFFORTS,
    PNG,
    SCHEMAS,
    Body,
    common,
    holder_of,
    image_url,
    maybe,
    mutate,
    paths,
    text,
)
from .responses_bodies import responses

# Chat Completions


def _chat_content(rng: random.Random, images: bool = True) -> Any:
    if rng.random() < 0.6:
        return text(rng)
    parts: list[Body] = []
    for _ in range(rng.randrange(3)):
        kind = rng.randrange(4 if images else 1)
        if kind < 2:
            parts.append({"type": "text", "text": text(rng)})
        elif kind == 2:
            url: Body = {"url": image_url(rng)}
            maybe(rng, url, "detail", lambda: rng.choice(["low", "high", "auto", "original"]))
            parts.append({"type": "image_url", "image_url": url})
        else:
            parts.append({"type": "file", "file_data": rng.choice([PNG, "data:application/pdf;base64,AA=="])})
    return parts


def _chat_messages(rng: random.Random) -> list[Body]:
    messages: list[Body] = []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": _chat_content(rng)})
    for turn in range(rng.randrange(1, 4)):
        messages.append({"role": "user", "content": _chat_content(rng)})
        if rng.random() < 0.15:
            messages.append({"role": "latest_reminder", "content": text(rng)})
        if turn == 0 or rng.random() < 0.6:
            assistant: Body = {"role": "assistant", "content": _chat_content(rng, images=False)}
            maybe(rng, assistant, "reasoning_content", lambda: text(rng), 0.5)
            messages.append(assistant)
            if rng.random() < 0.5:
                ids = rng.sample(["1", "2", "call_10"], rng.randrange(1, 3))
                assistant["tool_calls"] = [_chat_call(rng, i) for i in ids]
                maybe(rng, assistant, "content", lambda: None)
                rng.shuffle(ids)
                messages += [{"role": "tool", "tool_call_id": i, "content": _chat_content(rng)} for i in ids]
    if rng.random() < 0.15:
        prefix: Body = {"role": "assistant", "content": text(rng), "prefix": True}
        messages.append(prefix | {"reasoning_content": text(rng)})
    return messages


def _chat_call(rng: random.Random, call_id: str) -> Body:
    function = {"name": "f", "arguments": rng.choice(["{}", "x"])}
    return {"id": call_id, "type": "function", "function": function}


def _chat_tool(rng: random.Random, name: str, strict: bool) -> Body:
    function: Body = {"name": name}
    maybe(rng, function, "description", lambda: text(rng))
    maybe(rng, function, "parameters", lambda: rng.choice(SCHEMAS), 0.7)
    if strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _chat_format(rng: random.Random) -> Body:
    schema: Body = {"schema": rng.choice(SCHEMAS), "name": "n"}
    maybe(rng, schema, "strict", lambda: True)
    return rng.choice(
        [{"type": "text"}, {"type": "json_object"}, {"type": "regex", "regex": "[ab]"},
         {"type": "json_schema", "json_schema": schema}]
    )  # fmt: skip


def chat(rng: random.Random) -> Body:
    body: Body = {
        "model": rng.choice(["DeepSeek-V4.1-Flash", "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"]),
        "messages": _chat_messages(rng),
    }
    common(rng, body)
    strict = rng.random() < 0.3
    maybe(rng, body, "tools", lambda: [_chat_tool(rng, n, strict) for n in rng.choice(["f", "fg", ""])], 0.5)
    named = {"type": "function", "function": {"name": rng.choice("fgh")}}
    maybe(rng, body, "tool_choice", lambda: rng.choice(["none", "auto", "required", named]))
    maybe(rng, body, "thinking", lambda: {"type": rng.choice(["enabled", "disabled", "adaptive"])}, 0.5)
    maybe(rng, body, "reasoning_effort", lambda: rng.choice(EFFORTS))
    maybe(rng, body, "response_format", lambda: _chat_format(rng))
    maybe(rng, body, "max_tokens", lambda: rng.choice([1, 64, 393216, 393217]))
    maybe(rng, body, "stop", lambda: rng.choice(["a", ["a", "b"], [], ["a"] * 17]))
    maybe(rng, body, "logprobs", lambda: True)
    maybe(rng, body, "top_logprobs", lambda: rng.choice([0, 20, 21]))
    maybe(rng, body, "seed", lambda: rng.choice([0, 7, 2**63 - 1, 2**63]))
    maybe(rng, body, "presence_penalty", lambda: rng.choice([-2, 0.5, 2.5]), 0.1)
    maybe(rng, body, "frequency_penalty", lambda: rng.choice([-2, 0.5, 2.5]), 0.1)
    maybe(rng, body, "stream_options", lambda: {"include_usage": True}, 0.1)
    return body


# Messages


def _blocks(rng: random.Random, kinds: str) -> list[Body]:
    """t text, i image, d document, h thinking, s server tool, r its result, a tool addition."""
    built: dict[str, Callable[[], Body]] = {
        "t": lambda: {"type": "text", "text": text(rng)},
        "i": lambda: {"type": "image", "source": rng.choice(_MESSAGE_IMAGES)},
        "d": lambda: {"type": "document", "source": rng.choice(_DOCUMENTS)},
        "h": lambda: {"type": "thinking", "thinking": text(rng), "signature": "s"},
        "s": lambda: {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        "r": lambda: {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        "a": lambda: {"type": "tool_addition", "tool": {"type": "tool_reference", "name": rng.choice("fgz")}},
    }
    return [built[rng.choice(kinds)]() for _ in range(rng.randrange(1, 3))]


_MESSAGE_IMAGES: list[Body] = [
    {"type": "base64", "media_type": "image/png", "data": "AAAA"},
    {"type": "base64", "media_type": "image/png", "data": "AA"},
    {"type": "url", "url": "https://x.test/a"},
    {"type": "url", "url": "x"},
    {"type": "file", "file_id": "x"},
]
_DOCUMENTS: list[Body] = [
    {"type": "text", "media_type": "text/plain", "data": "x"},
    {"type": "base64", "media_type": "application/pdf", "data": "x"},
    {"type": "url", "url": "u"},
    {"type": "content", "content": []},
    {"type": "file", "file_id": "x"},
]


def _message_content(rng: random.Random, kinds: str) -> Any:
    return text(rng) if rng.random() < 0.5 else _blocks(rng, kinds)


def _tool_result(rng: random.Random, call_id: str) -> Body:
    result: Body = {"type": "tool_result", "tool_use_id": call_id}
    parts = [*_blocks(rng, "ttid"), {"type": "tool_reference", "tool_name": rng.choice("fgz")}]
    maybe(rng, result, "content", lambda: rng.choice([text(rng), parts[: rng.randrange(3)], None]), 0.8)
    maybe(rng, result, "is_error", lambda: True, 0.1)
    return result


def _message_list(rng: random.Random) -> list[Body]:
    messages: list[Body] = []
    for _ in range(rng.randrange(1, 4)):
        if rng.random() < 0.15:
            messages.append({"role": "system", "content": _message_content(rng, "ttiad")})
        messages.append({"role": "user", "content": _message_content(rng, "ttttid")})
        if rng.random() < 0.7:
            content = _blocks(rng, "tttthhdsri")
            messages.append({"role": "assistant", "content": content})
            if rng.random() < 0.5:
                ids = rng.sample(["1", "2", "3"], rng.randrange(1, 3))
                content += [
                    {"type": "tool_use", "id": i, "name": "f", "input": rng.choice(_INPUTS)} for i in ids
                ]
                rng.shuffle(ids)
                results = [_tool_result(rng, i) for i in ids]
                messages.append({"role": "user", "content": results + _blocks(rng, "t")[: rng.randrange(2)]})
    return messages


_INPUTS: list[Any] = [{}, {"a": 1}, {"a": [1.0, 1e16, "é"]}, "x", None]


def messages(rng: random.Random) -> Body:
    body: Body = {
        "model": rng.choice(["DeepSeek-V4.1-Flash", "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"]),
        "max_tokens": rng.choice([1, 100, 500000]),
        "messages": _message_list(rng),
    }
    common(rng, body)
    maybe(rng, body, "system", lambda: rng.choice([text(rng), _blocks(rng, "t"), []]))
    maybe(
        rng, body, "tools", lambda: [_message_tool(rng, name) for name in rng.choice(["f", "fg", "gf"])], 0.6
    )
    named = {"type": "tool", "name": rng.choice("fgz")}
    kinds = [{"type": "auto"}, {"type": "any"}, {"type": "none"}, named]
    maybe(rng, body, "tool_choice", lambda: rng.choice(kinds))
    maybe(rng, body, "thinking", lambda: {"type": rng.choice(["enabled", "disabled", "adaptive"])}, 0.6)
    maybe(rng, body, "output_config", lambda: {"effort": rng.choice(EFFORTS)})
    maybe(rng, body, "stop_sequences", lambda: rng.choice([["a"], [], ["a", ""]]))
    maybe(rng, body, "metadata", lambda: {"user_id": "u"}, 0.1)
    return body


def _message_tool(rng: random.Random, name: str) -> Body:
    if rng.random() < 0.1:
        return {"type": rng.choice(["web_search_20250305", "custom"]), "name": "web_search"}
    tool: Body = {"name": name, "input_schema": rng.choice(SCHEMAS[:6] if rng.random() < 0.8 else SCHEMAS)}
    maybe(rng, tool, "description", lambda: text(rng))
    maybe(rng, tool, "defer_loading", lambda: rng.random() < 0.5)
    return tool


OPTIONS: list[Body] = [
    {}, {}, {}, {"default_thinking_mode": False}, {"reasoning_content_behavior": "Reject"},
    {"messages_web_search": "Drop"}, {"responses_web_search": "Reject"},
    {"thinking_max_tokens_upper_bound": 50, "non_thinking_max_tokens_upper_bound": 20},
]  # fmt: skip
BODIES: dict[str, Callable[[random.Random], Body]] = {
    "chat": chat,
    "messages": messages,
    "responses": responses,
}


def case(rng: random.Random, protocol: str) -> tuple[Body, Body]:
    """A body and conversion options; every second body was changed in one or two places."""
    build = BODIES[protocol]
    body = build(rng)
    donor = build(rng)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        places = paths(donor)
        donors = [holder_of(donor, path)[path[-1]] for path in rng.sample(places, min(8, len(places)))]
        body = mutate(rng, body, donors)
    return body, rng.choice(OPTIONS)
