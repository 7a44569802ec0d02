"""Arguments of one tool call: from DSML parameters to the JSON text of an object, piece by piece.

A string is passed on as it comes, escaped. A value that claims to be JSON is kept until it is whole, because
only then can it be checked: one that is not JSON becomes a string. So the arguments of every finished call
are JSON, whatever the model wrote; the official codec copies names and values unchecked (DIFFERENCES.md).
"""

from __future__ import annotations

import msgspec

from .events import CallArguments, OutputEvent

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def escaped(text: str) -> str:
    """`text` as the inside of a JSON string."""
    return _encode(text)[1:-1].decode()


class ArgumentsWriter:
    """Appends `CallArguments` to a list of events."""

    def __init__(self, events: list[OutputEvent]) -> None:
        self.events = events
        self._is_empty = True
        self.is_string = True
        self._raw: list[str] = []

    def begin_parameter(self) -> None:
        self._write("{" if self._is_empty else ", ")
        self._is_empty = False

    def name(self, name: str) -> None:
        self._write(f'"{escaped(name)}"')
        self._write(": ")

    def begin_value(self, is_string: bool) -> None:
        self.is_string = is_string
        if is_string:
            self._write('"')

    def value(self, text: str) -> None:
        if self.is_string:
            if text:
                self._write(escaped(text))
        else:
            self._raw.append(text)

    def end_value(self) -> None:
        if self.is_string:
            self._write('"')
            return
        raw = "".join(self._raw)
        self._raw.clear()
        self._write(raw if _is_json(raw) else f'"{escaped(raw)}"')

    def end(self) -> None:
        self._write("{}" if self._is_empty else "}")

    def cut(self) -> None:
        """The output ended inside: show what there is of a value that was being kept."""
        if self._raw:
            self._write("".join(self._raw))

    def _write(self, text: str) -> None:
        self.events.append(CallArguments(text))


def _is_json(text: str) -> bool:
    try:
        _decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        return False
    return True
