"""The tool calls of an output: DSML tags, read by the few words that matter in them.

A model's markup is nearly always right and sometimes nearly right, so tags are recognised by what is
distinctive (`invoke name="`, `parameter name=`, the DSML token behind `</`) and the rest between them is
skipped. A parameter name in quotes ends at a quote followed by a space or `>`, so it may hold spaces.
"""

from __future__ import annotations

from collections.abc import Callable

from .arguments import ArgumentsWriter, escaped
from .events import CallArguments, CallEnded, CallStarted, OutputEvent
from .markers import MarkerSet

Stage = Callable[[str, int], int]


class CallMarkers:
    """What is looked for inside a block of calls, given the DSML token's spelling."""

    def __init__(self, dsml: str) -> None:
        closing = "</" + dsml
        self.calls = MarkerSet('invoke name="', f"{closing}tool_calls>", f"{closing} calls>")
        self.name = MarkerSet('"')
        self.parameters = MarkerSet("parameter name=", closing)
        self.quoted_name = MarkerSet('" ', '">')
        self.bare_name = MarkerSet(" ", ">")
        self.attribute = MarkerSet('true">', 'false">')
        self.value = MarkerSet(closing)


class CallsReader:
    """Reads from behind the opening of a block to the end of the output; what follows the block is dropped.

    `spell` turns what came as token ids into their spelling; `events` is where the news goes.
    """

    def __init__(self, markers: CallMarkers, spell: Callable[[str], str]) -> None:
        self._markers, self._spell = markers, spell
        self.events: list[OutputEvent] = []
        self.tail = ""
        """The end of the text read, which may begin a marker; to be read again in front of what follows."""
        self._stage: Stage = self._between_calls
        self._pieces: list[str] = []  # of a name
        self._arguments = ArgumentsWriter(self.events)

    @property
    def in_string_value(self) -> bool:
        """Whether text without `<` would be nothing but more of a string argument."""
        return self._stage == self._value and self._arguments.is_string and not self.tail

    def read(self, text: str) -> list[OutputEvent]:
        self.tail = ""
        position = 0
        while position < len(text):
            position = self._stage(text, position)
        return self._take()

    def finish(self) -> list[OutputEvent]:
        """The output is over; a call that is open stays so, and is reported as cut off."""
        if self._stage == self._value:
            self._arguments.value(self._spell(self.tail))
            self._arguments.cut()
        elif self._stage in (self._quoted_name, self._bare_name):
            self._pieces.append(self.tail)
            self.events.append(CallArguments(f'"{escaped(self._take_name())}'))
        if self._stage not in (self._between_calls, self._name, self._done):
            self.events.append(CallEnded(complete=False))
        self._stage = self._done
        return self._take()

    def _take(self) -> list[OutputEvent]:
        events = self.events[:]
        self.events.clear()
        return events

    def _until(self, markers: MarkerSet, text: str, position: int) -> tuple[str, int, str | None]:
        """(text before the marker, where to go on, the marker), or all but the tail and no marker."""
        match = markers.search(text, position)
        if match is not None:
            return text[position : match.start()], match.end(), match[0]
        kept = markers.unfinished(text, position)
        self.tail = text[len(text) - kept :]
        return text[position : len(text) - kept], len(text), None

    def _between_calls(self, text: str, position: int) -> int:
        _, position, marker = self._until(self._markers.calls, text, position)
        if marker is not None:
            self._stage = self._name if marker == 'invoke name="' else self._done
        return position

    def _name(self, text: str, position: int) -> int:
        piece, position, marker = self._until(self._markers.name, text, position)
        self._pieces.append(piece)
        if marker is not None:
            self.events.append(CallStarted(self._take_name()))
            self._arguments = ArgumentsWriter(self.events)
            self._stage = self._parameters
        return position

    def _take_name(self) -> str:
        name = self._spell("".join(self._pieces))
        self._pieces.clear()
        return name

    def _parameters(self, text: str, position: int) -> int:
        _, position, marker = self._until(self._markers.parameters, text, position)
        if marker == "parameter name=":
            self._arguments.begin_parameter()
            self._stage = self._parameter_name
        elif marker is not None:
            self._arguments.end()
            self.events.append(CallEnded(complete=True))
            self._stage = self._between_calls
        return position

    def _parameter_name(self, text: str, position: int) -> int:
        if text[position] == '"':
            self._stage = self._quoted_name
            return position + 1
        self._stage = self._bare_name
        return position

    def _quoted_name(self, text: str, position: int) -> int:
        return self._read_name(self._markers.quoted_name, text, position)

    def _bare_name(self, text: str, position: int) -> int:
        return self._read_name(self._markers.bare_name, text, position)

    def _read_name(self, markers: MarkerSet, text: str, position: int) -> int:
        piece, position, marker = self._until(markers, text, position)
        self._pieces.append(piece)
        if marker is not None:
            self._arguments.name(self._take_name())
            self._stage = self._attribute
            if marker.endswith(">"):  # the attribute that says what the value is was left out
                self._begin_value(is_string=True)
        return position

    def _attribute(self, text: str, position: int) -> int:
        _, position, marker = self._until(self._markers.attribute, text, position)
        if marker is not None:
            self._begin_value(is_string=marker.startswith("true"))
        return position

    def _begin_value(self, is_string: bool) -> None:
        self._arguments.begin_value(is_string)
        self._stage = self._value

    def _value(self, text: str, position: int) -> int:
        piece, position, marker = self._until(self._markers.value, text, position)
        self._arguments.value(self._spell(piece))
        if marker is not None:
            self._arguments.end_value()
            self._stage = self._parameters
        return position

    def _done(self, text: str, position: int) -> int:
        return len(text)
