"""The output parser: text in pieces of any size in, events out, and the same events wherever it was cut.

A table of stages (recipe_spec 4.2): in each, a few markers end it, and the text outside them has one meaning.
Three promises shape the code. It never raises, whatever a model writes: what fits nothing is text. It is
linear: a piece is joined with at most a marker's length of what came before, and otherwise no character is
looked at twice. It does not depend on chunking: what is kept back is what may still be part of a marker.

Special tokens known by id come in as one private character each (`BY_ID`), so that characters which merely
spell a marker stay characters; where only text is known, the spelling is the marker.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from functools import lru_cache

import msgspec

from .arguments import escaped
from .calls_reader import CallMarkers, CallsReader
from .events import CallArguments, ContentText, OutputEvent, ReasoningText, StopMatched
from .markers import MarkerSet, StopSequences
from .options import ParsingOptions, ThinkingStart
from .text_scanner import TextScanner


class Alphabet(msgspec.Struct, frozen=True):
    """How the two tokens that structure an output look in the parser's input."""

    dsml: str
    thinking_end: str


BY_ID = Alphabet("\udc80", "\udc81")
"""Halves of surrogate pairs: no text decoded from bytes can hold one."""

_BY_ID_CHARACTER = re.compile(f"[{BY_ID.dsml}{BY_ID.thinking_end}]")


class _Kind(Enum):
    REASONING = "reasoning"
    CONTENT = "content"
    BEFORE_JSON = "before JSON"
    JSON = "JSON"
    AFTER_JSON = "after JSON"


_PLAIN: dict[_Kind, type[ReasoningText | ContentText]] = {
    _Kind.REASONING: ReasoningText,
    _Kind.CONTENT: ContentText,
    _Kind.JSON: ContentText,
}
"""Stages in which text without a marker is shown as it is."""


class _Stage:
    """A stage of text: which markers end it, which swallows newlines, whether stop sequences apply."""

    def __init__(
        self, kind: _Kind, *markers: str, strips_before: str | None = None, has_stops: bool = False
    ) -> None:
        self.kind, self.strips_before, self.has_stops = kind, strips_before, has_stops
        self.markers = MarkerSet(*markers)
        self.suspects = {"\n"} if strips_before is not None else set()
        self.suspects |= self.markers.first_characters | {BY_ID.dsml, BY_ID.thinking_end}
        """A piece without any of these characters, and nothing kept back before it, is only text."""
        self.plain = _PLAIN.get(kind)


class _Stages:
    """All stages of one alphabet. Tool calls are one more, with its own reader."""

    def __init__(self, alphabet: Alphabet, parse_tool_calls: bool) -> None:
        opening = "<" + alphabet.dsml
        calls = (opening,) if parse_tool_calls else ()
        end = self.thinking_end = alphabet.thinking_end
        fences = ("```json\n", "```\n", "{", "[")
        self.reasoning = _Stage(_Kind.REASONING, *calls, end, strips_before="")
        self.content = _Stage(_Kind.CONTENT, *calls, end, strips_before=opening, has_stops=True)
        self.before_json = _Stage(_Kind.BEFORE_JSON, *fences, *calls, end, strips_before=opening)
        self.json = _Stage(_Kind.JSON, "\n```", has_stops=True)
        self.after_json = _Stage(_Kind.AFTER_JSON, *calls, strips_before=opening)
        self.call_markers = CallMarkers(alphabet.dsml)
        self.opening = opening


_stages = lru_cache(maxsize=64)(_Stages)


class OutputParser:
    """Parses one output. `push` and `finish` return the news; behind a stop sequence there is none."""

    def __init__(self, options: ParsingOptions, alphabet: Alphabet | None = None) -> None:
        """`alphabet`: None for text, `BY_ID` for input from `TokenText`."""
        tokens = options.special_tokens
        alphabet = alphabet or Alphabet(tokens.dsml, tokens.thinking_end)
        self._stages = _stages(alphabet, options.parse_tool_calls)
        self._spellings = {BY_ID.dsml: tokens.dsml, BY_ID.thinking_end: tokens.thinking_end}
        self._stops = StopSequences(options.stop_sequences) if options.stop_sequences else None
        self._answer = self._stages.before_json if options.parse_json_output else self._stages.content
        self._events: list[OutputEvent] = []
        self._calls: CallsReader | None = None
        self._scanner: TextScanner
        self._stage: _Stage
        self._needs_a_look: Callable[[str], object]
        self._strips_newlines: bool
        self._plain: type[ReasoningText | ContentText] | None  # what a piece without suspects becomes
        self._owes_space = True  # the text around JSON becomes one space before and one behind
        self._enter(self._answer, strips_newlines=options.thinking_start is None)
        start = options.thinking_start
        if options.starts_in_tool_calls:
            self._enter_calls()
        elif start is not None and start.is_reasoning:
            self._enter(self._stages.reasoning, strips_newlines=start is ThinkingStart.REASONING)

    @property
    def in_reasoning(self) -> bool:
        return self._stage is self._stages.reasoning and self._calls is None

    @property
    def stopped(self) -> str | None:
        """The stop sequence that ended the output, once one did."""
        return self._scanner.stop

    def plain(self, text: str) -> type[ReasoningText | ContentText] | None:
        """The one event that `push` would give for this text, with all of it, if that is certain at a glance.

        Then `push` may be left out.
        """
        return self._plain if text and self._plain is not None and self._needs_a_look(text) is None else None

    def push(self, text: str) -> list[OutputEvent]:
        """The events this text completes."""
        plain = self.plain(text)
        if plain is not None:
            return [plain(text)]
        if self._calls is None:
            self._read(text)
            return self._take()
        if self._calls.in_string_value and text and "<" not in text:
            return [CallArguments(escaped(self._spell(text)))]
        return self._calls.read(self._calls.tail + text)

    def finish(self) -> list[OutputEvent]:
        """The output is over: what was kept back is text, and an open call was cut off."""
        if self._calls is not None:
            return self._calls.finish()
        if self._scanner.stop is None:
            self._show(self._scanner.flush())
        return self._take()

    def _take(self) -> list[OutputEvent]:
        events, self._events = self._events, []
        return events

    def _enter(self, stage: _Stage, *, strips_newlines: bool = False) -> None:
        stops = self._stops if stage.has_stops else None
        self._stage, self._strips_newlines = stage, strips_newlines
        self._scanner = TextScanner(stage.markers, stops, stage.strips_before)
        suspects = stage.suspects | (stops.first_characters if stops is not None else frozenset())
        self._needs_a_look = _finder(frozenset(suspects))
        self._plain = None if strips_newlines else stage.plain

    def _enter_calls(self) -> None:
        self._plain = None
        self._calls = CallsReader(self._stages.call_markers, self._spell)

    def _read(self, text: str) -> None:
        text, position = self._scanner.tail + text, 0
        while self._calls is None and self._scanner.stop is None:
            position = self._behind_leading_newlines(text, position)
            if position == len(text):
                break
            shown, position, marker = self._scanner.read(text, position)
            self._show(shown)
            if marker is not None:
                self._on_marker(marker)
        if self._scanner.stop is not None:
            self._events.append(StopMatched(self._scanner.stop))
        if self._calls is not None:
            self._events += self._calls.read(text[position:])
        else:
            self._plain = self._stage.plain if self._scanner.is_clear and not self._strips_newlines else None

    def _on_marker(self, marker: str) -> None:
        stages, kind = self._stages, self._stage.kind
        if marker == stages.opening:
            self._enter_calls()
        elif marker == stages.thinking_end:
            if kind is _Kind.REASONING:
                self._enter(self._answer, strips_newlines=True)
        elif kind is _Kind.BEFORE_JSON:
            self._enter(stages.json)
            if marker in "{[":
                self._show(marker)
        else:
            self._owes_space = True
            self._enter(stages.after_json)

    def _behind_leading_newlines(self, text: str, position: int) -> int:
        """They are no part of a text, so no stop sequence can match them."""
        while self._strips_newlines and position < len(text):
            if text[position] != "\n":
                self._strips_newlines = False
            else:
                position += 1
        return position

    def _show(self, text: str) -> None:
        if not text:
            return
        plain = self._stage.plain
        if plain is not None:
            self._events.append(plain(self._spell(text)))
        elif self._owes_space:
            self._owes_space = False
            self._events.append(ContentText(" "))

    def _spell(self, text: str) -> str:
        if _BY_ID_CHARACTER.search(text) is None:
            return text
        return _BY_ID_CHARACTER.sub(lambda match: self._spellings[match[0]], text)


@lru_cache(maxsize=256)
def _finder(characters: frozenset[str]) -> Callable[[str], object]:
    """Finds any of the characters in a text."""
    return re.compile("[" + "".join(map(re.escape, sorted(characters))) + "]").search
