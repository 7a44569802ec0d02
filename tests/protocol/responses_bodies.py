"""Random bodies of the Responses protocol."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from .random_json import (
    EFFORTS,
    PNG,
    SCHEMAS,
    Body,
    common,
    image_url,
    maybe,
    text,
)


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
    maybe(rng, tool, "description", lambda: text(rng))
    maybe(rng, tool, "parameters", lambda: rng.choice(SCHEMAS), 0.7)
    if strict:
        tool["strict"] = True
    return tool


def _response_tools(rng: random.Random) -> list[Body]:
    strict = rng.random() < 0.2
    tools = [_response_tool(rng, name, strict) for name in rng.choice(["f", "fg", ""])]
    space = {"type": "namespace", "name": "ns", "tools": [_response_tool(rng, "a", strict)]}
    maybe(rng, space, "description", lambda: text(rng), 0.5)
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
    common(rng, body)
    maybe(rng, body, "instructions", lambda: text(rng))
    maybe(rng, body, "max_output_tokens", lambda: rng.choice([1, 64, 393217]))
    maybe(rng, body, "tools", lambda: _response_tools(rng), 0.5)
    named = {"type": "function", "name": rng.choice(["f", "g", "ns::a"])}
    choices = ["none", "auto", "required", named, {"type": "web_search"}]
    maybe(rng, body, "tool_choice", lambda: rng.choice(choices))
    maybe(rng, body, "reasoning", lambda: {"effort": rng.choice(EFFORTS), "summary": "auto"}, 0.6)
    schema: Body = {"type": "json_schema", "name": "n", "schema": rng.choice(SCHEMAS)}
    maybe(rng, schema, "strict", lambda: True)
    formats = [{"type": "text"}, {"type": "json_object"}, schema]
    maybe(rng, body, "text", lambda: {"format": rng.choice(formats), "verbosity": "low"})
    maybe(rng, body, "top_logprobs", lambda: rng.choice([0, 20, 21]), 0.1)
    return body
