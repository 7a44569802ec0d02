"""What holds for every output: no exception, one reading, JSON arguments, linear time."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepahead.recipe.parsing.events import CallArguments, CallEnded, CallStarted, OutputEvent
from stepahead.recipe.parsing.options import ParsingOptions, ThinkingStart
from stepahead.recipe.parsing.parser import OutputParser
from stepahead.recipe.protocols.chat.writer import ChatHeader, ChatWriter
from stepahead.recipe.protocols.events import CallIds, Finish, Writer, frames
from stepahead.recipe.protocols.messages.writer import MessagesWriter
from stepahead.recipe.protocols.options import ConversionOptions
from stepahead.recipe.protocols.responses.convert import convert_with_body
from stepahead.recipe.protocols.responses.writer import ResponsesWriter
from stepahead.recipe.special_tokens import DEFAULT_SPECIAL_TOKENS
from stepahead.recipe.stream import OutputStream
from stepahead.recipe.vocabulary import Vocabulary

from . import our_news, output_cases
from .fake_engine import tokenizer

seeds = st.integers(0, 2**63)
OPEN_CALL = '<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">\n'
PARAMETER = '<｜DSML｜ parameter name="a" string="true">'
CALL_END = "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"


def vocabulary() -> Vocabulary:
    return Vocabulary(tokenizer(), DEFAULT_SPECIAL_TOKENS)


def calls(events: list[OutputEvent]) -> Iterator[tuple[str, bool]]:
    """(arguments, whether complete) of each call."""
    pieces: list[str] = []
    for event in events:
        if isinstance(event, CallStarted):
            pieces = []
        elif isinstance(event, CallArguments):
            pieces.append(event.text)
        elif isinstance(event, CallEnded):
            yield "".join(pieces), event.complete


@given(st.one_of(st.text(), st.builds(lambda seed: output_cases.text(random.Random(seed)), seeds)), seeds)
def test_an_output_has_one_reading_wherever_it_is_cut(whole: str, seed: int) -> None:
    plain = output_cases.options(random.Random(seed))
    expected = our_news.parse([whole], plain)
    assert our_news.parse(list(whole), plain) == expected
    for cut in range(len(whole) + 1):
        assert our_news.parse([whole[:cut], whole[cut:]], plain) == expected


@given(seeds, st.data())
def test_an_output_of_tokens_has_one_reading_wherever_it_is_cut(seed: int, data: Any) -> None:
    rng, known = random.Random(seed), vocabulary()
    plain = output_cases.options(rng)
    if rng.random() < 0.5:
        ids = known.tokenizer.encode_many([output_cases.text(rng)], literal=rng.random() < 0.3)[0]
    else:
        ids = data.draw(st.lists(st.integers(-1, len(known.pieces) + 1), max_size=40))
    expected = our_news.parse_tokens([ids], plain, known)
    assert our_news.parse_tokens([[token] for token in ids], plain, known) == expected
    for cut in range(len(ids) + 1):
        assert our_news.parse_tokens([ids[:cut], ids[cut:]], plain, known) == expected


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
@given(seeds)
def test_the_short_way_of_a_chunk_says_the_same(protocol: str, seed: int) -> None:
    rng, known = random.Random(seed), vocabulary()
    plain = output_cases.options(rng)
    ids = known.tokenizer.encode_many([output_cases.text(rng)], literal=rng.random() < 0.3)[0]
    said = []
    for is_short in (False, True):
        writer = new_writer(protocol, plain)
        stream = OutputStream(writer, our_news.parsing_options(plain), known)
        sent = frames(stream.begin(3))
        for token in ids:
            sent += stream.push_frames([token]) if is_short else frames(stream.push_tokens([token]))
        sent += frames(stream.finish(Finish.STOP))
        said.append((sent, writer.response()))
    assert said[0] == said[1]


def new_writer(protocol: str, plain: dict[str, Any]) -> Writer:
    """With ids and clocks that stand still."""
    thinking, call_ids = plain["thinking_start"] is not None, CallIds(lambda: "x")
    if protocol == "chat":
        start = our_news.parsing_options(plain).thinking_start
        return ChatWriter(ChatHeader("id", "model", 1), start, call_ids=call_ids)
    if protocol == "messages":
        return MessagesWriter("id", "model", thinking, call_ids=call_ids)
    effort = {"effort": "high" if thinking else "none"}
    body = {"model": "DeepSeek-V4.1-Flash", "input": "?", "reasoning": effort}
    request = convert_with_body(json.dumps(body), ConversionOptions())
    return ResponsesWriter("id", "model", request, created=1, clock=lambda: 2.0, call_ids=call_ids)


@given(seeds)
def test_arguments_of_every_complete_call_are_a_json_object(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        plain, whole = output_cases.options(rng), output_cases.text(rng)
        for arguments, complete in calls(our_news.events(output_cases.pieces(rng, whole), plain)):
            if complete:
                assert isinstance(json.loads(arguments), dict), whole


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
def test_a_closing_tag_in_a_shell_command_is_an_argument(size: int) -> None:
    """B8: `2>&1` in front of the closing tag, in steps of any size, with the start tag and without."""
    call = f"{OPEN_CALL}{PARAMETER}make 2>&1</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    ids = tokenizer().encode(call)[1:]
    plain = {
        **output_cases.options(random.Random(0)),
        "parse_tool_calls": True,
        "starts_in_tool_calls": False,
    }
    plain |= {"thinking_start": None, "stop_sequences": [], "parse_json_output": False}
    chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
    expected = [["call", "f"], ["arguments", '{"a": "make 2>&1"}']]
    assert our_news.parse_tokens(chunks, plain, vocabulary()) == expected
    begun = {**plain, "starts_in_tool_calls": True}
    rest = call.removeprefix("<｜DSML｜ calls>\n")
    assert our_news.parse([rest[i : i + size] for i in range(0, len(rest), size)], begun) == expected


HOSTILE = {
    "newlines": ("\n", ()),
    "open tags": ("<", ()),
    "half markers": ("<｜DSM", ()),
    "half ends": ("</thin", ()),
    "opened blocks": (OPEN_CALL, ()),
    "open parameters": (OPEN_CALL + PARAMETER + "</｜DSML｜ para", ()),
    "nested JSON": (OPEN_CALL + '<｜DSML｜ parameter name="a" string="false">' + "[" * 1000, ()),
    "quotes in names": (OPEN_CALL + '<｜DSML｜ parameter name="' + '"' * 100, ()),
    "near stops": ("a" * 99 + "b", ("a" * 100,)),
    "many stops": ("abababab", tuple("ab" * n + "c" for n in range(1, 16))),
    "calls": (OPEN_CALL + PARAMETER + "x" + CALL_END, ()),
}
STARTS = (None, ThinkingStart.REASONING)
LENGTH = 15_000


def seconds(text: str, stops: tuple[str, ...], start: ThinkingStart | None, size: int) -> float:
    parser = OutputParser(ParsingOptions(thinking_start=start, stop_sequences=stops))
    begun = time.process_time()
    for position in range(0, len(text), size):
        parser.push(text[position : position + size])
    parser.finish()
    return time.process_time() - begun


@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_linear_in_the_output(name: str) -> None:
    """Four times the text takes about four times as long; a quadratic reader takes sixteen."""
    unit, stops = HOSTILE[name]
    for start in STARTS:
        for size, length in ((1, LENGTH), (4096, 32 * LENGTH)):
            short, long = (unit * (n * length // len(unit) + 1) for n in (1, 4))
            ratios = (
                seconds(long, stops, start, size) / max(seconds(short, stops, start, size), 1e-3)
                for _ in range(4)
            )
            assert any(ratio < 8 for ratio in ratios), (start, size)


def test_one_huge_value_in_one_call_is_linear() -> None:
    head = OPEN_CALL + '<｜DSML｜ parameter name="a" string="false">'
    for body in ("[" * 500_000, '"' + "x" * 500_000, "1" * 500_000, "\\" * 500_000):
        for size in (16, 65536):
            assert seconds(head + body + CALL_END, (), None, size) < 10
