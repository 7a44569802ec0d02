"""What the event writers of the three protocols share.

Events are made as JSON bytes right away, from prefixes that are encoded once per stream: a chunk costs a few
microseconds, and at a hundred tokens a second for each of many streams nothing else would keep up. Rejected:
an object per chunk and an encoder behind it.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Protocol

import msgspec

from ..parsing.events import ContentText, OutputEvent, ReasoningText

encode_json = msgspec.json.Encoder().encode


class ServerEvent(msgspec.Struct, frozen=True, gc=False):
    """One server-sent event: an optional name and a line of JSON."""

    name: str | None
    data: bytes

    def frame(self) -> bytes:
        """As it is sent."""
        if self.name is None:
            return b"data: %b\n\n" % self.data
        return b"event: %b\ndata: %b\n\n" % (self.name.encode(), self.data)


def frames(events: Sequence[ServerEvent]) -> bytes:
    """Events as they are sent."""
    return b"".join([event.frame() for event in events])


DONE = b"data: [DONE]\n\n"
"""The last frame of a Chat Completions stream."""


class Finish(Enum):
    """Why the output ended, as the engine says. None of it: the engine said nothing."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    UNKNOWN = "unknown"


class Usage(msgspec.Struct, frozen=True):
    """`reasoning_tokens` None: not known."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int | None = None


class Logprob(msgspec.Struct, frozen=True):
    """Log probability of one token of the output. -inf and the like are None: JSON has no such number."""

    token: str
    logprob: float | None
    bytes: list[int]
    top_logprobs: Sequence[TopLogprob] = ()


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float | None
    bytes: list[int]


class Writer(Protocol):
    """Turns what the parser reports into events of a protocol, and into the complete response."""

    def begin(self, usage: Usage, fingerprint: str | None) -> list[ServerEvent]:
        """What is said before any output; `usage` knows the prompt."""

    def write(self, events: Sequence[OutputEvent], logprobs: Sequence[Logprob] = ()) -> list[ServerEvent]:
        """`logprobs` belong to the tokens these events show."""

    def frame(self, kind: type[ReasoningText | ContentText], text: str) -> bytes:
        """What `write` says of a piece of text, as it is sent: the short way of nearly all chunks."""

    def end(self, finish: Finish, usage: Usage, stop_sequence: str | None = None) -> list[ServerEvent]:
        """The end of this output."""

    def response(self) -> dict[str, Any]:
        """The complete response, once ended."""


_ALPHANUMERIC = string.ascii_letters + string.digits


def random_suffix() -> str:
    """20 letters and digits, and 4 digits: what makes a call id unique."""
    letters = "".join(secrets.choice(_ALPHANUMERIC) for _ in range(20))
    return f"{letters}{secrets.randbelow(10_000):04d}"


class CallIds:
    """Ids of the tool calls of one response: `call_00_...`, marked when thinking brought no reasoning."""

    def __init__(self, suffix: Callable[[], str] = random_suffix) -> None:
        self._suffix = suffix
        self.count = 0

    def new(self, *, without_reasoning: bool) -> str:
        mark = "ET_" if without_reasoning else ""
        call_id = f"call_{self.count:02d}_{mark}{self._suffix()}"
        self.count += 1
        return call_id
