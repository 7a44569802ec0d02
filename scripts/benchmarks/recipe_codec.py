"""Prompts, conversions and streams, ours and the official codec taking turns on the same input."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stepahead.recipe.encoding.encoder import PromptEncoder
from stepahead.recipe.parsing.options import ParsingOptions, ThinkingStart
from stepahead.recipe.protocols.chat.convert import convert
from stepahead.recipe.protocols.chat.writer import ChatHeader, ChatWriter
from stepahead.recipe.protocols.options import ConversionOptions
from stepahead.recipe.stream import OutputStream
from tests.protocol import golden, official, official_stream
from tests.protocol.v4_vocabulary import vocabulary

from .measure import alternate, medians
from .recipe_author import Author, Plain, chat_body, longer

Case = dict[str, Any]
Calls = dict[str, Callable[[], object]]

_LONG = 97_000  # tokens of a long conversation
_THINKING = {
    "parse_tool_calls": True,
    "starts_in_tool_calls": False,
    "parse_json_output": False,
    "thinking_start": "ReasoningStart",
    "stop_sequences": [],
}


def measure_codec(rounds: int) -> list[Case]:
    author = Author()
    plain = author.conversation(100)
    return [
        _fresh_prompt(plain, rounds),
        _longer_prompt(plain, rounds),
        _conversion(author, rounds * 3),
        *_chunks(author.lines(300), rounds),
    ]


def _fresh_prompt(plain: Plain, rounds: int) -> Case:
    ours, theirs, encoding = (
        golden.conversation(plain),
        official.conversation(plain),
        official.encoding("v4.1"),
    )

    def encode() -> list[int]:
        encoder = PromptEncoder(vocabulary(), "v4.1")
        return encoder.encode(encoder.render(ours)).tolist()

    expected = encoding.encode(theirs)
    if encode() != expected:
        raise RuntimeError("the prompts differ")
    calls: Calls = {"ours": encode, "official": lambda: encoding.encode(theirs)}
    seconds = medians(alternate(calls, rounds=rounds))
    ratio = seconds["ours"] / seconds["official"]
    name = f"render + encode {len(plain['messages'])} messages with tools, {len(expected):,} tokens"
    return _case(name, seconds, "ms", f"{ratio:.2f}x", "<= 1.3x", ratio <= 1.3)


def _longer_prompt(plain: Plain, rounds: int) -> Case:
    """Every round asks a new question, so that only what was really said before is remembered."""
    encoder = PromptEncoder(vocabulary(), "v4.1")
    encoder.encode(encoder.render(golden.conversation(plain)))
    asked = [golden.conversation(longer(plain, number)) for number in range(rounds + 1)]
    theirs, encoding = official.conversation(longer(plain, 0)), official.encoding("v4.1")
    calls: Calls = {
        "ours": lambda: encoder.encode(encoder.render(asked.pop())),
        "official": lambda: encoding.encode(theirs),
    }
    seconds = medians(alternate(calls, rounds=rounds))
    ratio = seconds["official"] / seconds["ours"]
    return _case(
        "the same, one turn longer", seconds, "ms", f"{ratio:.0f}x faster", ">= 10x faster", ratio >= 10
    )


def _conversion(author: Author, rounds: int) -> Case:
    encoder = PromptEncoder(vocabulary(), "v4.1")
    messages, tokens = 100, 0
    while tokens < _LONG:
        messages = messages * _LONG // tokens + 10 if tokens else messages
        plain = author.conversation(messages)
        tokens = len(encoder.encode(encoder.render(golden.conversation(plain))))
    raw, options, theirs = chat_body(plain), ConversionOptions(), official.peer.ConversionOptions()
    calls: Calls = {
        "ours": partial(convert, raw, options),
        "official": lambda: official.peer.ChatCompletionRequest(raw).convert(theirs),
    }
    seconds = medians(alternate(calls, rounds=rounds))
    name = f"convert a request of {tokens:,} tokens in {len(plain['messages'])} messages"
    return _case(name, seconds, "ms", "", "< 5 ms", seconds["ours"] < 5e-3)


def _chunks(text: str, rounds: int) -> list[Case]:
    """One token a chunk: decoded, parsed, an event made, its JSON written."""
    call = (
        '\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="tool_1">\n'
        f'<｜DSML｜ parameter name="path" string="true">{text}</｜DSML｜ parameter>\n'
        "</｜DSML｜ invoke>\n</｜DSML｜ calls>"
    )
    cases = []
    for name, output in (("text", f"{text[:2000]}</think>{text}"), ("tool arguments", f"x</think>{call}")):
        ids = vocabulary().tokenizer.encode_many([output], literal=False)[0]
        calls: Calls = {"ours": partial(_our_stream, ids), "official": partial(_official_stream, ids)}
        seconds = {key: value / len(ids) for key, value in medians(alternate(calls, rounds=rounds)).items()}
        met = seconds["ours"] < 20e-6
        cases.append(_case(f"parse + event + JSON per chunk of {name}", seconds, "us", "", "< 20 us", met))
    return cases


def _our_stream(ids: list[int]) -> int:
    writer = ChatWriter(ChatHeader("id", "model", 1), ThinkingStart.REASONING)
    options = ParsingOptions(thinking_start=ThinkingStart.REASONING)
    stream, size = OutputStream(writer, options, vocabulary()), 0
    for token in ids:
        for event in stream.push_tokens((token,)):
            size += len(event.frame())
    return size


def _official_stream(ids: list[int]) -> int:
    processor, size = official_stream.processor(_THINKING, official.tokenizer()), 0
    for token in ids:
        for event in processor.push(official.peer.InferenceChunk.tokens([token])):
            size += len(event.to_json())
    return size


def _case(name: str, seconds: dict[str, float], unit: str, remark: str, goal: str, met: bool) -> Case:
    scale = {"ms": 1e3, "us": 1e6}[unit]
    shown = {key: f"{value * scale:.2f} {unit}" for key, value in seconds.items()}
    ours = f"{shown['ours']} ({remark})" if remark else shown["ours"]
    return {"case": name, "ours": ours, "official": shown["official"], "goal": goal, "met": met} | {
        "seconds": seconds
    }
