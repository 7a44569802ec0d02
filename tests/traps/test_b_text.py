"""Traps B: what a reader sees of the tokens, the same however many of them a step brings."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stepahead import Completion, Delta, FinishReason, InvalidParameterError, SamplingParams
from stepahead.devices.clock import run_virtual
from tests.actors.scripted_engine import open_scripted
from tests.unit.text_tokenizer import SPLIT_EMOJI, small_tokenizer

TOKENIZER = small_tokenizer()
END = TOKENIZER.end_id or 0
AT_ONCE = pytest.mark.parametrize("at_once", [1, 2, 5])


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, literal=True)


def token(data: bytes) -> int:
    return TOKENIZER.token_bytes.pieces.index(data)


def say(script: list[int], at_once: int = 1, **params: Any) -> tuple[list[Delta], Completion]:
    """What a stream and a completion of the same request show, when each sequence says `script`."""
    chosen = SamplingParams(**{"temperature": 0, "max_tokens": 100, **params})

    async def both() -> tuple[list[Delta], Completion]:
        async with open_scripted(script, at_once=at_once) as engine:
            deltas = [delta async for delta in engine.stream("tell", chosen)]
            return deltas, await engine.generate("tell", chosen)

    deltas, completion = run_virtual(both())
    assert "".join(delta.text for delta in deltas) == completion.text
    assert tuple(t for delta in deltas for t in delta.token_ids) == completion.token_ids
    assert [delta.finish_reason for delta in deltas if delta.finish_reason] == [completion.finish_reason]
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.output_tokens == completion.usage.output_tokens
    return deltas, completion


@AT_ONCE
@pytest.mark.parametrize("text", [" \U0001f469", "👨‍👩‍👧‍👦 ď 你好", "naïve 🌶"])
def test_b1_no_delta_holds_half_a_character(text: str, at_once: int) -> None:
    deltas, completion = say([*ids(text), END], at_once)
    assert not any("\ufffd" in delta.text for delta in deltas)
    assert completion.text == text


@AT_ONCE
@pytest.mark.parametrize("ending", ["eos", "length", "stop string", "stop id"])
def test_b3_half_a_character_at_the_end_is_one_replacement(ending: str, at_once: int) -> None:
    """One rule for every ending and both modes: U+FFFD, and both tokens count."""
    half = [*ids("a"), token(SPLIT_EMOJI)]
    params: dict[str, Any] = {"length": {"max_tokens": 2}, "stop id": {"stop_token_ids": (ids("z")[0],)}}.get(
        ending, {}
    )
    if ending == "stop string":
        _, completion = say([*half, *ids("z"), END], at_once, stop=("z",))
        assert completion.text == "a \ufffd"  # the half ends where the stop string begins, and stays
        assert len(completion.token_ids) == 3
        return
    script = [*half, ids("z")[0] if ending == "stop id" else END]
    _, completion = say(script, at_once, **params)
    assert completion.text == "a \ufffd"
    assert completion.token_ids == tuple(half)


COUNTING = "one, two, three, four, five, six, seven"


@AT_ONCE
@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize(
    ("text", "stops", "shown", "stop"),
    [
        (COUNTING, ("five, s",), "one, two, three, four, ", "five, s"),
        ("aaab", ("ab", "aab"), "aa", "ab"),
        (COUNTING, ("five!!",), COUNTING, ""),
        ("hot 🌶 pepper", ("🌶",), "hot ", "🌶"),
        ("hello world", ("wor",), "hello ", "wor"),
        ("abc", ("abc",), "", "abc"),
    ],
)
def test_b4_a_stop_string_ends_the_text_exactly(
    text: str, stops: tuple[str, ...], shown: str, stop: str, include_stop: bool, at_once: int
) -> None:
    _, completion = say([*ids(text), END], at_once, stop=stops, include_stop=include_stop)
    assert completion.text == shown + (stop if include_stop else "")
    assert completion.finish_reason is FinishReason.STOP
    if stop:
        seen = TOKENIZER.decode(completion.token_ids)
        assert stop in seen, "the tokens of the stop string are there"
        assert stop not in TOKENIZER.decode(completion.token_ids[:-1]), "no token behind it is"
        assert completion.usage.output_tokens == len(completion.token_ids)


@AT_ONCE
def test_b4_a_stop_string_is_not_looked_for_before_min_tokens(at_once: int) -> None:
    _, completion = say([*ids("xyxyz"), END], at_once, stop=("y",), min_tokens=3)
    assert completion.text == "xyx"


@AT_ONCE
@pytest.mark.parametrize("include_stop", [False, True])
def test_b6_the_text_of_a_stop_id_is_out_unless_asked_for(include_stop: bool, at_once: int) -> None:
    five = token(b" five")
    script = [*ids("four,"), five, *ids(" six"), END]
    _, completion = say(script, at_once, stop_token_ids=(five,), include_stop=include_stop)
    assert completion.text == ("four, five" if include_stop else "four,")
    assert completion.token_ids == tuple(ids("four,")) + ((five,) if include_stop else ())
    assert completion.finish_reason is FinishReason.STOP
    assert completion.usage.output_tokens == len(ids("four,")) + 1, "the stop id was computed, and is counted"


def test_b7_stop_strings_without_text_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match=re.escape("stop=('x',)")):
        say(ids("x"), stop=("x",), detokenize=False)


@AT_ONCE
def test_b7_without_detokenizing_the_ids_are_the_same(at_once: int) -> None:
    script = [*ids("naïve"), END]
    _, with_text = say(script, at_once)
    _, without = say(script, at_once, detokenize=False)
    assert without.text == ""
    assert without.token_ids == with_text.token_ids == tuple(ids("naïve"))
    assert without.finish_reason is FinishReason.STOP


def test_b8_special_tokens_are_not_text() -> None:
    begin = TOKENIZER.begin_id or 0
    _, completion = say([*ids("ab"), begin, *ids("c"), END])
    assert completion.text == "abc"
    assert begin in completion.token_ids
