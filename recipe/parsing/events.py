"""What the parser reports, in the order the model said it."""

from __future__ import annotations

import msgspec


class ReasoningText(msgspec.Struct, frozen=True, gc=False):
    text: str


class ContentText(msgspec.Struct, frozen=True, gc=False):
    text: str


class CallStarted(msgspec.Struct, frozen=True, gc=False):
    """A tool call with its name; its arguments follow in pieces."""

    name: str


class CallArguments(msgspec.Struct, frozen=True, gc=False):
    """A piece of the arguments' JSON text."""

    text: str


class CallEnded(msgspec.Struct, frozen=True, gc=False):
    """No more arguments. `complete`: the model closed the call, and the pieces join to a JSON object."""

    complete: bool


class StopMatched(msgspec.Struct, frozen=True, gc=False):
    """A stop sequence ended the answer; nothing follows."""

    sequence: str


OutputEvent = ReasoningText | ContentText | CallStarted | CallArguments | CallEnded | StopMatched


def merge_neighbours(events: list[OutputEvent]) -> list[OutputEvent]:
    """The same news in fewer events: neighbouring pieces of one text become one."""
    if len(events) < 2:
        return events
    merged: list[OutputEvent] = []
    pieces: list[str] = []
    for position, event in enumerate(events):
        if not isinstance(event, ReasoningText | ContentText | CallArguments):
            merged.append(event)
            continue
        pieces.append(event.text)
        following = events[position + 1] if position + 1 < len(events) else None
        if type(following) is not type(event):
            merged.append(event if len(pieces) == 1 else type(event)("".join(pieces)))
            pieces.clear()
    return merged
