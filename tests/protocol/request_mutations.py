"""Request bodies of every kind, valid and then broken in one to three places.

Plain `random` instead of strategies: a mutation needs the whole body at hand, and what matters is how many
are tried. Tests draw the seed with hypothesis.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

Body = dict[str, Any]
Path = list[str | int]

PNG = "data:image/png;base64,AAAA"
SCALARS: list[Any] = [
    None, True, False, 0, 1, 2, -1, 17, 21, 255, 256, 2**32 - 1, 2**32, 2**63, 2**64,
    0.0, 0.5, 1.0, 1.5, 2.5, -0.5, 1e-7, "", "a", "json", "a b", "é" * 70, "x" * 129,
    "none", "auto", "required", "any", "high", "max", "zz", "1", "object", "https://x.test/a", "ftp://x", PNG,
    "data:image/bmp;base64,AAAA", "data:image/png;base64,!!", "x-anthropic-billing-header: a",
    [], {}, [[]], [{}], ["a"], ["a", ""], [1], {"type": "object"}, {"type": "zz"},
]  # fmt: skip
SCHEMAS: list[Any] = [
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number", "minimum": 1}}}},
    {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": ["null"]}}}}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    {},
    True,
    None,
    {"type": "object", "properties": {"a": {"type": "foo"}}},
]


def paths(value: Any, prefix: Path | None = None) -> list[Path]:
    """Every place in a body, the body itself excepted."""
    found: list[Path] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        path = [*(prefix or []), key]
        found.append(path)
        found += paths(inner, path)
    return found


def _parent(body: Any, path: Path) -> Any:
    for key in path[:-1]:
        body = body[key]
    return body


def mutate(rng: random.Random, body: Body, donors: list[Any]) -> Body:
    """One change somewhere: deleted, replaced, repeated, swapped, or a piece of another body put in."""
    body = copy.deepcopy(body)
    places = paths(body)
    if not places:
        return body
    path = rng.choice(places)
    parent, key = _parent(body, path), path[-1]
    action = rng.randrange(6)
    if action == 0:
        del parent[key]
    elif action == 1 and isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), copy.deepcopy(parent[key]))
    elif action == 2 and isinstance(parent, list):
        rng.shuffle(parent)
    elif action == 3:
        parent[key] = copy.deepcopy(rng.choice(donors))
    elif action == 4 and isinstance(parent, dict):
        parent[rng.choice(_FIELDS)] = copy.deepcopy(rng.choice(SCALARS))
    else:
        parent[key] = copy.deepcopy(_like(rng, parent[key]))
    return body


_FIELDS = ("type", "role", "content", "name", "strict", "id", "text", "detail", "prefix", "description")


def _like(rng: random.Random, value: Any) -> Any:
    """Another value, mostly of the same type: wrong types are refused early and hide the rest."""
    same = [other for other in SCALARS if type(other) is type(value)]
    return rng.choice(same) if same and rng.random() < 0.8 else rng.choice(SCALARS)


def _maybe(rng: random.Random, body: Body, key: str, value: Callable[[], Any], chance: float = 0.3) -> None:
    if rng.random() < chance:
        body[key] = value()


def _common(rng: random.Random, body: Body) -> None:
    _maybe(rng, body, "temperature", lambda: rng.choice([0, 0.3, 1, 2]), 0.2)
    _maybe(rng, body, "top_p", lambda: rng.choice([0.1, 0.95, 0.97, 1]), 0.2)
    _maybe(rng, body, "stream", lambda: rng.random() < 0.5, 0.3)


def text(rng: random.Random) -> str:
    return rng.choice(_TEXTS)


_TEXTS = ("hi", "", "json", "a\n\nb", "<｜User｜>", "<｜image｜>", "你好", "x-anthropic-billing-header: y")


def image_url(rng: random.Random) -> str:
    return rng.choice(["https://x.test/a.png", PNG, "HTTP://x", "data:image/jpg;base64,AA=="])


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
            _maybe(rng, url, "detail", lambda: rng.choice(["low", "high", "auto", "original"]))
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
            _maybe(rng, assistant, "reasoning_content", lambda: text(rng), 0.5)
            messages.append(assistant)
            if rng.random() < 0.5:
                ids = rng.sample(["1", "2", "call_10"], rng.randrange(1, 3))
                assistant["tool_calls"] = [_chat_call(rng, i) for i in ids]
                _maybe(rng, assistant, "content", lambda: None)
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
    _maybe(rng, function, "description", lambda: text(rng))
    _maybe(rng, function, "parameters", lambda: rng.choice(SCHEMAS), 0.7)
    if strict:
        function["strict"] = True
    return {"type": "function", "function": function}


def _chat_format(rng: random.Random) -> Body:
    schema: Body = {"schema": rng.choice(SCHEMAS), "name": "n"}
    _maybe(rng, schema, "strict", lambda: True)
    return rng.choice(
        [{"type": "text"}, {"type": "json_object"}, {"type": "regex", "regex": "[ab]"},
         {"type": "json_schema", "json_schema": schema}]
    )  # fmt: skip


def chat(rng: random.Random) -> Body:
    body: Body = {
        "model": rng.choice(["DeepSeek-V4.1-Flash", "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"]),
        "messages": _chat_messages(rng),
    }
    _common(rng, body)
    strict = rng.random() < 0.3
    _maybe(rng, body, "tools", lambda: [_chat_tool(rng, n, strict) for n in rng.choice(["f", "fg", ""])], 0.5)
    named = {"type": "function", "function": {"name": rng.choice("fgh")}}
    _maybe(rng, body, "tool_choice", lambda: rng.choice(["none", "auto", "required", named]))
    _maybe(rng, body, "thinking", lambda: {"type": rng.choice(["enabled", "disabled", "adaptive"])}, 0.5)
    _maybe(rng, body, "reasoning_effort", lambda: rng.choice(EFFORTS))
    _maybe(rng, body, "response_format", lambda: _chat_format(rng))
    _maybe(rng, body, "max_tokens", lambda: rng.choice([1, 64, 393216, 393217]))
    _maybe(rng, body, "stop", lambda: rng.choice(["a", ["a", "b"], [], ["a"] * 17]))
    _maybe(rng, body, "logprobs", lambda: True)
    _maybe(rng, body, "top_logprobs", lambda: rng.choice([0, 20, 21]))
    _maybe(rng, body, "seed", lambda: rng.choice([0, 7, 2**63 - 1, 2**63]))
    _maybe(rng, body, "presence_penalty", lambda: rng.choice([-2, 0.5, 2.5]), 0.1)
    _maybe(rng, body, "frequency_penalty", lambda: rng.choice([-2, 0.5, 2.5]), 0.1)
    _maybe(rng, body, "stream_options", lambda: {"include_usage": True}, 0.1)
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
    _maybe(rng, result, "content", lambda: rng.choice([text(rng), parts[: rng.randrange(3)], None]), 0.8)
    _maybe(rng, result, "is_error", lambda: True, 0.1)
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
    _common(rng, body)
    _maybe(rng, body, "system", lambda: rng.choice([text(rng), _blocks(rng, "t"), []]))
    _maybe(
        rng, body, "tools", lambda: [_message_tool(rng, name) for name in rng.choice(["f", "fg", "gf"])], 0.6
    )
    named = {"type": "tool", "name": rng.choice("fgz")}
    kinds = [{"type": "auto"}, {"type": "any"}, {"type": "none"}, named]
    _maybe(rng, body, "tool_choice", lambda: rng.choice(kinds))
    _maybe(rng, body, "thinking", lambda: {"type": rng.choice(["enabled", "disabled", "adaptive"])}, 0.6)
    _maybe(rng, body, "output_config", lambda: {"effort": rng.choice(EFFORTS)})
    _maybe(rng, body, "stop_sequences", lambda: rng.choice([["a"], [], ["a", ""]]))
    _maybe(rng, body, "metadata", lambda: {"user_id": "u"}, 0.1)
    return body


def _message_tool(rng: random.Random, name: str) -> Body:
    if rng.random() < 0.1:
        return {"type": rng.choice(["web_search_20250305", "custom"]), "name": "web_search"}
    tool: Body = {"name": name, "input_schema": rng.choice(SCHEMAS[:6] if rng.random() < 0.8 else SCHEMAS)}
    _maybe(rng, tool, "description", lambda: text(rng))
    _maybe(rng, tool, "defer_loading", lambda: rng.random() < 0.5)
    return tool


# Responses


def _response_content(rng: random.Random, kinds: str) -> Any:
    if rng.random() < 0.5:
        return text(rng)
    built: dict[str, Callable[[], Body]] = {
        "t": lambda: {"type": "input_text", "text": text(rng)},
        "o": lambda: {"type": "output_text", "text": text(rng), "annotations": []},
        "i": lambda: {
            "type": "input_image",
            "image_url": image_url(rng),
            "detail": rng.choice(["low", None]),
        },
        "f": lambda: {"type": "input_file", "file_data": PNG},
    }
    return [built[rng.choice(kinds)]() for _ in range(rng.randrange(3))]


def _response_tool(rng: random.Random, name: str, strict: bool) -> Body:
    tool: Body = {"type": "function", "name": name}
    _maybe(rng, tool, "description", lambda: text(rng))
    _maybe(rng, tool, "parameters", lambda: rng.choice(SCHEMAS), 0.7)
    if strict:
        tool["strict"] = True
    return tool


def _response_tools(rng: random.Random) -> list[Body]:
    strict = rng.random() < 0.2
    tools = [_response_tool(rng, name, strict) for name in rng.choice(["f", "fg", ""])]
    space = {"type": "namespace", "name": "ns", "tools": [_response_tool(rng, "a", strict)]}
    _maybe(rng, space, "description", lambda: text(rng), 0.5)
    others: list[Body] = [
        space, {"type": "custom", "name": "apply_patch"}, {"type": "web_search"}, {"type": "mcp"},
        {"type": "tool_search", "execution": rng.choice(["client", "server"])},
    ]  # fmt: skip
    return tools + rng.sample(others, rng.randrange(3))


def _turn(rng: random.Random, numbers: Iterator[int]) -> list[Body]:
    items: list[Body] = []
    if rng.random() < 0.5:
        reasoning = [{"type": "reasoning_text", "text": text(rng)} for _ in range(rng.randrange(3))]
        items.append({"type": "reasoning", "summary": [], "content": reasoning})
    if rng.random() < 0.6:
        items.append({"role": "assistant", "content": _response_content(rng, "ooofi")})
    calls = [str(next(numbers)) for _ in range(rng.randrange(3))]
    outputs = []
    for call_id in calls:
        kind = rng.randrange(4)
        if kind < 2:
            items.append({"type": "function_call", "call_id": call_id, "name": "f", "arguments": "{}"})
            outputs.append(
                {"type": "function_call_output", "call_id": call_id, "output": _response_content(rng, "tif")}
            )
        elif kind == 2:
            items.append(
                {"type": "custom_tool_call", "call_id": call_id, "name": "apply_patch", "input": "p"}
            )
            outputs.append({"type": "custom_tool_call_output", "call_id": call_id, "output": text(rng)})
        else:
            items.append({"type": "tool_search_call", "call_id": call_id, "arguments": {"q": 1.0}})
            found = [_response_tool(rng, f"n{call_id}", False)]
            outputs.append({"type": "tool_search_output", "call_id": call_id, "tools": found})
    rng.shuffle(outputs)
    return items + outputs


def responses(rng: random.Random) -> Body:
    body: Body = {"model": rng.choice(["DeepSeek-V4.1-Flash", "DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro"])}
    if rng.random() < 0.2:
        body["input"] = text(rng)
    else:
        numbers = iter(range(1, 100))
        items: list[Body] = []
        for _ in range(rng.randrange(1, 4)):
            role = rng.choice(["user", "user", "user", "developer", "system"])
            items.append({"role": role, "content": _response_content(rng, "tttif")})
            if rng.random() < 0.7:
                items += _turn(rng, numbers)
            if rng.random() < 0.1:
                items.append({"type": "mcp_call", "id": "x"})
        body["input"] = items
    _common(rng, body)
    _maybe(rng, body, "instructions", lambda: text(rng))
    _maybe(rng, body, "max_output_tokens", lambda: rng.choice([1, 64, 393217]))
    _maybe(rng, body, "tools", lambda: _response_tools(rng), 0.5)
    named = {"type": "function", "name": rng.choice(["f", "g", "ns::a"])}
    choices = ["none", "auto", "required", named, {"type": "web_search"}]
    _maybe(rng, body, "tool_choice", lambda: rng.choice(choices))
    _maybe(rng, body, "reasoning", lambda: {"effort": rng.choice(EFFORTS), "summary": "auto"}, 0.6)
    schema: Body = {"type": "json_schema", "name": "n", "schema": rng.choice(SCHEMAS)}
    _maybe(rng, schema, "strict", lambda: True)
    formats = [{"type": "text"}, {"type": "json_object"}, schema]
    _maybe(rng, body, "text", lambda: {"format": rng.choice(formats), "verbosity": "low"})
    _maybe(rng, body, "top_logprobs", lambda: rng.choice([0, 20, 21]), 0.1)
    return body


EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
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
    """A body and conversion options; three in four bodies were changed in one to three places."""
    build = BODIES[protocol]
    body = build(rng)
    donor = build(rng)
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        places = paths(donor)
        donors = [_parent(donor, path)[path[-1]] for path in rng.sample(places, min(8, len(places)))]
        body = mutate(rng, body, donors)
    return body, rng.choice(OPTIONS)
