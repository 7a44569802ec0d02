"""Traps of text that others fell into (traps B1 to B8), at the protocol's edge: V4 ids, any chunking."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from stepahead.recipe.parsing.options import ParsingOptions
from stepahead.recipe.protocols.chat.writer import ChatHeader, ChatWriter
from stepahead.recipe.protocols.events import Finish
from stepahead.recipe.stream import OutputStream

from .v4_vocabulary import vocabulary

SIZES = (1, 2, 5, 10_000)
OPEN = '<｜DSML｜ calls>\n<｜DSML｜ invoke name="run">\n<｜DSML｜ parameter name="command" string="true">'
CALL = f"{OPEN}make 2>&1"
CALL_END = "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
BEGIN_OF_TEXT = 0


def ids_of(text: str) -> list[int]:
    ids = vocabulary().tokenizer.encode_many([text], literal=False)[0]
    return ids[1:] if ids[:1] == [BEGIN_OF_TEXT] else ids


def read(ids: Sequence[int], size: int, finish: Finish, stops: tuple[str, ...] = ()) -> dict[str, Any]:
    """The choice of the complete response; what the chunks say must be the same."""
    writer = ChatWriter(ChatHeader("id", "model", 1), None)
    stream = OutputStream(writer, ParsingOptions(stop_sequences=stops), vocabulary())
    events = stream.begin()
    for start in range(0, len(ids), size):
        events += stream.push_tokens(ids[start : start + size])
    events += stream.finish(finish)
    deltas = [json.loads(event.data)["choices"][0]["delta"] for event in events]
    choice = writer.choice()
    assert "".join(delta.get("content") or "" for delta in deltas) == choice["message"]["content"]
    return choice | {"tokens": stream.usage.output_tokens}


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("text", ["👨‍👩‍👧‍👦 ď 你好", "a🦜", "𓂀𓂀 x"])
def test_b1_characters_of_many_tokens_are_whole(text: str, size: int) -> None:
    choice = read(ids_of(text), size, Finish.STOP)
    assert choice["message"]["content"] == text


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH])
def test_b3_half_a_character_at_the_end_is_one_replacement(finish: Finish, size: int) -> None:
    ids = ids_of("ok 🦜")
    cut = next(n for n in range(len(ids)) if not vocabulary().texts[ids[n]]) + 1
    assert cut < len(ids), "the character must be split"
    choice = read(ids[:cut], size, finish)
    assert choice["message"]["content"].rstrip("\ufffd") in ("ok ", "ok")
    assert choice["message"]["content"].count("\ufffd") == 1
    assert choice["tokens"] == cut


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("text", "stops", "expected", "reason"),
    [
        ("three, four, five, six", ("five, s",), "three, four, ", "stop"),
        ("aaab", ("ab", "aab"), "aa", "stop"),
        ("it is five, six", ("five!!",), "it is five, six", "length"),
        ("a 🦜 b", ("🦜",), "a ", "stop"),
        ("hello world", ("wor",), "hello ", "stop"),
        ("ends with fiv", ("five",), "ends with fiv", "length"),
    ],
)
def test_b4_stop_sequences_end_the_answer_where_they_begin(
    text: str, stops: tuple[str, ...], expected: str, reason: str, size: int
) -> None:
    choice = read(ids_of(text), size, Finish.LENGTH, stops)
    assert (choice["message"]["content"], choice["finish_reason"]) == (expected, reason)


@pytest.mark.parametrize("size", SIZES)
def test_b8_a_call_is_read_whatever_happened_to_it(size: int) -> None:
    expected = {"name": "run", "arguments": '{"command": "make 2>&1"}'}
    whole = read(ids_of(f"Look.\n\n{CALL}{CALL_END}"), size, Finish.STOP)
    assert whole["message"]["content"] == "Look."
    assert whole["message"]["tool_calls"][0]["function"] == expected
    assert whole["finish_reason"] == "tool_calls"
    without_start = read(ids_of(f"{CALL}{CALL_END}".removeprefix("<｜DSML｜ calls>\n")), size, Finish.STOP)
    assert (
        without_start["message"]["tool_calls"][0]["function"] == whole["message"]["tool_calls"][0]["function"]
    )
    cut = read(ids_of(CALL), size, Finish.LENGTH)
    assert cut["finish_reason"] == "length"
    assert cut["message"]["tool_calls"][0]["function"]["arguments"] == '{"command": "make 2>&1'


@pytest.mark.parametrize("size", SIZES)
def test_b8_tokens_between_turns_are_never_text(size: int) -> None:
    ids = ids_of("one two")
    middle = len(ids) // 2
    choice = read([*ids[:middle], BEGIN_OF_TEXT, *ids[middle:]], size, Finish.STOP)
    assert choice["message"]["content"] == "one two"
