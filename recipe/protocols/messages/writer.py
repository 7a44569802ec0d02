"""Events and the complete response of Messages (recipe_spec 4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...json_text import JsonTextError, parse
from ...parsing.events import (
    CallArguments,
    CallEnded,
    CallStarted,
    ContentText,
    OutputEvent,
    ReasoningText,
)
from ..events import CallIds, Finish, Logprob, ServerEvent, Usage, encode_json, frames

_PING = ServerEvent("ping", b'{"type":"ping"}')
_STOP = ServerEvent("message_stop", b'{"type":"message_stop"}')
_DELTAS = {
    "text": (b'{"type":"text_delta","text":', "text"),
    "thinking": (b'{"type":"thinking_delta","thinking":', "thinking"),
    "tool_use": (b'{"type":"input_json_delta","partial_json":', "partial_json"),
}
_REASONS = {Finish.LENGTH: "max_tokens", Finish.CONTENT_FILTER: "refusal"}


class MessagesWriter:
    """Writes one message. `signature` closes a thinking block; the response's id unless given."""

    def __init__(
        self,
        id: str,
        model: str,
        thinking: bool,
        *,
        signature: str | None = None,
        call_ids: CallIds | None = None,
    ) -> None:
        self._id, self._model, self._thinking = id, model, thinking
        self._signature = id if signature is None else signature
        self._call_ids = call_ids or CallIds()
        self._blocks: list[dict[str, Any]] = []
        self._pieces: list[str] = []  # of the open block
        self._open: str | None = None  # its type
        self._delta_head = b""
        self._calls_complete = False
        self._has_reasoning = False
        self._pinged = False
        self._stop: tuple[str | None, str | None] = (None, None)
        self._usage = Usage()

    def begin(self, usage: Usage, fingerprint: str | None) -> list[ServerEvent]:
        self._usage = usage
        start = {"type": "message_start", "message": self._body([])}
        events = [ServerEvent("message_start", encode_json(start))]
        if self._thinking:
            events += self._start("thinking", {"type": "thinking", "thinking": "", "signature": ""})
        return events

    def _start(self, kind: str, block: dict[str, Any]) -> list[ServerEvent]:
        index = len(self._blocks)
        self._blocks.append(dict(block))
        self._open = kind
        self._delta_head = b'{"type":"content_block_delta","index":%d,"delta":' % index + _DELTAS[kind][0]
        start = {"type": "content_block_start", "index": index, "content_block": block}
        events = [ServerEvent("content_block_start", encode_json(start))]
        if not self._pinged:
            self._pinged = True
            events.append(_PING)
        return events

    def _close(self) -> list[ServerEvent]:
        if self._open is None:
            return []
        index, block = len(self._blocks) - 1, self._blocks[-1]
        text = "".join(self._pieces)
        self._pieces.clear()
        events = []
        if self._open == "thinking":
            block["thinking"], block["signature"] = text, self._signature
            delta = {"type": "signature_delta", "signature": self._signature}
            body = {"type": "content_block_delta", "index": index, "delta": delta}
            events.append(ServerEvent("content_block_delta", encode_json(body)))
        elif self._open == "tool_use":
            block["input"] = _tool_input(text)
        else:
            block["text"] = text
        self._open = None
        stop = b'{"type":"content_block_stop","index":%d}' % index
        return [*events, ServerEvent("content_block_stop", stop)]

    def write(self, events: Sequence[OutputEvent], logprobs: Sequence[Logprob] = ()) -> list[ServerEvent]:
        written: list[ServerEvent] = []
        for event in events:
            if isinstance(event, ContentText):
                if self._open != "text":
                    written += self._close()
                    written += self._start("text", {"type": "text", "text": ""})
                written.append(self._delta(event.text))
            elif isinstance(event, ReasoningText):
                self._has_reasoning = True
                written.append(self._delta(event.text))
            elif isinstance(event, CallArguments):
                written.append(self._delta(event.text))
            elif isinstance(event, CallStarted):
                written += self._close()
                written += self._start("tool_use", self._tool_use(event.name))
            elif isinstance(event, CallEnded):
                self._calls_complete = event.complete
                if event.complete:
                    written += self._close()
        return written

    def frame(self, kind: type[ReasoningText | ContentText], text: str) -> bytes:
        if self._open != ("text" if kind is ContentText else "thinking"):
            return frames(self.write([kind(text)]))
        self._has_reasoning = self._has_reasoning or kind is ReasoningText
        return self._delta(text).frame()

    def _tool_use(self, name: str) -> dict[str, Any]:
        self._calls_complete = False
        without_reasoning = self._thinking and not self._has_reasoning
        call_id = self._call_ids.new(without_reasoning=without_reasoning)
        return {"type": "tool_use", "id": call_id, "name": name, "input": {}}

    def _delta(self, text: str) -> ServerEvent:
        self._pieces.append(text)
        return ServerEvent("content_block_delta", self._delta_head + encode_json(text) + b"}}")

    def end(self, finish: Finish, usage: Usage, stop_sequence: str | None = None) -> list[ServerEvent]:
        self._usage = usage
        self._stop = (self._reason(finish, stop_sequence), stop_sequence)
        delta = {"stop_reason": self._stop[0], "stop_sequence": stop_sequence}
        body = {"type": "message_delta", "delta": delta, "usage": _usage_body(usage)}
        return [*self._close(), ServerEvent("message_delta", encode_json(body)), _STOP]

    def _reason(self, finish: Finish, stop_sequence: str | None) -> str:
        """A call that was cut off is never reported as one to be made."""
        if stop_sequence is not None:
            return "stop_sequence"
        if finish is Finish.STOP and self._calls_complete:
            return "tool_use"
        return _REASONS.get(finish, "end_turn")

    def response(self) -> dict[str, Any]:
        return self._body(self._blocks)

    def _body(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": self._stop[0],
            "stop_sequence": self._stop[1],
            "usage": _usage_body(self._usage),
        }


def _tool_input(arguments: str) -> Any:
    """The object; empty when the arguments were cut off, which the stop reason says."""
    try:
        return parse(arguments)
    except JsonTextError:
        return {}


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": max(0, usage.prompt_tokens - usage.cached_tokens),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.output_tokens,
        "service_tier": "standard",
    }
