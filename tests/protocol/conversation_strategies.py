"""Random conversations, dense in everything that has ever confused a renderer."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from stepahead.recipe.special_tokens import DEFAULT_SPECIAL_TOKENS

SPELLINGS = [getattr(DEFAULT_SPECIAL_TOKENS, name) for name in DEFAULT_SPECIAL_TOKENS.__struct_fields__]
FRAGMENTS = (
    *SPELLINGS,
    "</tool_result>", "<tool_result>", "</｜DSML｜ parameter>", "<｜DSML｜ calls>\n",
    "\n", "\n\n", " ", "", "json",
)  # fmt: skip
IDS = ("", "a", "b", "call_2", "call_10", None, "unknown", "é")

plain_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
texts = st.lists(st.one_of(st.sampled_from(FRAGMENTS), plain_text), max_size=4).map("".join)
numbers = st.one_of(
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e-7, 1e-5, 1e-6, 1e16, 1e15, 5e-324, 1.0, -0.0, 2**63, 2**64 - 1, 2**64, -(2**63) - 1]),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=8,
)
in_range = st.one_of(
    st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), texts
)
schemas = st.one_of(
    st.none(),
    st.just({"type": "object"}),
    st.recursive(
        in_range,
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
        max_leaves=6,
    ),
)


_ODD_ARGUMENTS = (
    "", "{}", "[]", " { } ", '{"a":1,"a":2}', '{"a":-0}', '{"a":1e400}', '{"a":NaN}', '{"a":"\\ud800"}',
    '{"a":1}x', '{"b":{"a":-0,"c":[-0.0, 12345678901234567890123]}}', "\ufeff{}", '{"a":01}',
)  # fmt: skip


@st.composite
def arguments(draw: st.DrawFn) -> str:
    if draw(st.booleans()):
        value = draw(st.dictionaries(texts, json_values, max_size=3))
        return json.dumps(value, ensure_ascii=draw(st.booleans()))
    return draw(st.one_of(texts, json_values.map(json.dumps), st.sampled_from(_ODD_ARGUMENTS)))


tools = st.fixed_dictionaries(
    {"name": st.one_of(st.sampled_from(["f", "g"]), texts)},
    optional={
        "description": st.one_of(st.none(), texts),
        "parameters": schemas,
        "strict": st.one_of(st.none(), st.booleans()),
        "defer_loading": st.booleans(),
    },
)
calls = st.fixed_dictionaries(
    {"id": st.sampled_from([i for i in IDS if i is not None]), "name": texts, "arguments": arguments()}
)


@st.composite
def image_sources(draw: st.DrawFn) -> list[dict[str, Any]] | None:
    if draw(st.integers(0, 4)):
        return None
    kinds = st.sampled_from(
        [
            {"kind": "url", "url": "https://x.test/a.png"},
            {"kind": "data_url", "data_url": "data:image/png;base64,AA==", "detail": "low"},
            {"kind": "bytes", "data_hex": "00ff", "detail": "original", "path": "p"},
        ]
    )
    return draw(st.lists(kinds, max_size=3))


image_texts = st.lists(st.sampled_from(["<｜image｜>", "x", "\n\n", "<｜ref｜>"]), max_size=4).map("".join)


@st.composite
def messages(draw: st.DrawFn) -> dict[str, Any]:
    role = draw(
        st.sampled_from(
            ["system", "user", "user", "assistant", "assistant", "tool", "tool", "latest_reminder"]
        )
    )
    message: dict[str, Any] = {"role": role, "content": draw(texts)}
    if role in ("system", "user", "tool"):
        message["image_sources"] = draw(image_sources())
        if message["image_sources"]:
            message["content"] = draw(image_texts)
    if role == "system" and not draw(st.integers(0, 3)):
        message["tools"] = draw(st.lists(tools, max_size=2))
    if role == "tool":
        message["tool_call_id"] = draw(st.sampled_from(IDS))
    if role == "assistant":
        message["reasoning_content"] = draw(st.one_of(st.none(), texts))
        message["tool_calls"] = draw(st.one_of(st.none(), st.lists(calls, max_size=3)))
        message["prefix"] = not draw(st.integers(0, 3))
    return message


@st.composite
def conversations(draw: st.DrawFn) -> dict[str, Any]:
    """Constructor keywords of a conversation."""
    plain: dict[str, Any] = {
        "messages": draw(st.lists(messages(), max_size=9)),
        "thinking_mode": draw(st.booleans()),
        "tools": draw(st.lists(tools, max_size=3)),
        "tool_choice": draw(st.sampled_from(["auto", "none", "required"])),
        "reasoning_effort": draw(st.sampled_from([None, "low", "high", "xhigh", "max"])),
    }
    style = draw(st.integers(0, 5))
    if style == 0:
        plain["response_format"] = "json_object"
    elif style == 1:
        plain["response_schema"] = draw(schemas)
    elif style == 2:
        plain["response_regex"] = draw(texts)
    return plain
