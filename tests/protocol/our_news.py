"""What our parser says of an output, reduced as `official_stream.news` reduces the official chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepahead.recipe.parsing.events import (
    CallArguments,
    CallStarted,
    ContentText,
    OutputEvent,
    ReasoningText,
)
from stepahead.recipe.parsing.options import ParsingOptions, ThinkingStart
from stepahead.recipe.parsing.parser import BY_ID, OutputParser
from stepahead.recipe.parsing.token_text import TokenText
from stepahead.recipe.vocabulary import Vocabulary

_KINDS = {ReasoningText: "reasoning", ContentText: "content", CallArguments: "arguments"}


def parsing_options(plain: dict[str, Any]) -> ParsingOptions:
    start = plain.get("thinking_start")
    return ParsingOptions(
        parse_tool_calls=plain["parse_tool_calls"],
        starts_in_tool_calls=plain["starts_in_tool_calls"],
        parse_json_output=plain["parse_json_output"],
        thinking_start=None if start is None else ThinkingStart(start),
        stop_sequences=tuple(plain["stop_sequences"]),
    )


def parse(pieces: Sequence[str], plain: dict[str, Any]) -> list[list[str]]:
    return news(events(pieces, plain))


def events(pieces: Sequence[str], plain: dict[str, Any]) -> list[OutputEvent]:
    parser = OutputParser(parsing_options(plain))
    found: list[OutputEvent] = []
    for piece in pieces:
        found += parser.push(piece)
        if parser.stopped is not None:
            return found
    return found + parser.finish()


def parse_tokens(
    chunks: Sequence[Sequence[int]], plain: dict[str, Any], vocabulary: Vocabulary
) -> list[list[str]]:
    parser, decoder = OutputParser(parsing_options(plain), BY_ID), TokenText(vocabulary)
    found: list[OutputEvent] = []
    for chunk in chunks:
        found += parser.push(decoder.push(chunk))
        if parser.stopped is not None:
            return news(found)
    return news(found + parser.push(decoder.finish()) + parser.finish())


def news(found: Sequence[OutputEvent]) -> list[list[str]]:
    said: list[list[str]] = []
    for event in found:
        if isinstance(event, CallStarted):
            said.append(["call", event.name])
        elif type(event) in _KINDS:
            append(said, _KINDS[type(event)], event.text)  # type: ignore[union-attr]
    return said


def append(said: list[list[str]], kind: str, text: str | None) -> None:
    """Neighbouring pieces of one kind are one."""
    if not text:
        return
    if said and said[-1][0] == kind:
        said[-1][1] += text
    else:
        said.append([kind, text])
