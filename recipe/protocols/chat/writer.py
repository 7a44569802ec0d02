"""Events and the complete response of Chat Completions (recipe_spec 4.4). One writer per choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ...parsing.events import (
    CallArguments,
    CallEnded,
    CallStarted,
    ContentText,
    OutputEvent,
    ReasoningText,
)
from ...parsing.options import ThinkingStart
from ..events import CallIds, Finish, Logprob, ServerEvent, Usage, encode_json


class ChatHeader(msgspec.Struct, frozen=True):
    """What all chunks of a response share. `created` is a Unix time in seconds."""

    id: str
    model: str
    created: int


class ChatUsage:
    """What all choices of a response used together. Said by the one that ends last."""

    def __init__(self, choices: int = 1) -> None:
        self._unfinished = choices
        self.total = Usage()

    def add(self, usage: Usage) -> bool:
        """Whether this was the last choice. The prompt counts once."""
        self._unfinished -= 1
        reasoning = usage.reasoning_tokens
        if reasoning is not None:
            reasoning += self.total.reasoning_tokens or 0
        self.total = Usage(
            usage.prompt_tokens,
            usage.cached_tokens,
            self.total.output_tokens + usage.output_tokens,
            reasoning,
        )
        return not self._unfinished


class ChatCall(msgspec.Struct):
    index: int
    id: str
    name: str
    arguments: list[str]
    complete: bool = False


class ChatWriter:
    """Writes one choice."""

    def __init__(
        self,
        header: ChatHeader,
        thinking_start: ThinkingStart | None,
        *,
        usage_on_every_chunk: bool = False,
        index: int = 0,
        call_ids: CallIds | None = None,
        shared_usage: ChatUsage | None = None,
    ) -> None:
        """`usage_on_every_chunk`: null, where the client asked for usage. `shared_usage`: of n > 1."""
        self._header, self._index, self._thinking_start = header, index, thinking_start
        self._tail = b',"usage":null}' if usage_on_every_chunk else b"}"
        self._call_ids = call_ids or CallIds()
        self._head = b""
        self._fingerprint: str | None = None
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ChatCall] = []
        self._logprobs: dict[str, list[Logprob]] = {}
        self._finish_reason: str | None = None
        self._usage = shared_usage or ChatUsage()
        is_thinking = thinking_start is not None
        self._deltas: dict[type, tuple[bytes, bytes]] = {
            ContentText: (b'{"content":', b',"reasoning_content":null}' if is_thinking else b"}"),
            ReasoningText: (b'{"content":null,"reasoning_content":', b"}"),
        }
        self._said: dict[type, list[str]] = {ContentText: self._content, ReasoningText: self._reasoning}
        self._around: dict[type, tuple[bytes, bytes]] = {}  # what is around the text of a chunk
        self._frames: dict[type, tuple[bytes, bytes]] = {}  # the same in a frame

    def begin(self, usage: Usage, fingerprint: str | None) -> list[ServerEvent]:
        header = self._header
        self._fingerprint = fingerprint
        shared = {
            "id": header.id,
            "object": "chat.completion.chunk",
            "created": header.created,
            "model": header.model,
            "system_fingerprint": fingerprint,
        }
        self._head = encode_json(shared)[:-1] + b',"choices":[{"index":%d,"delta":' % self._index
        if self._thinking_start is None:
            delta = b'{"role":"assistant","content":""}'
        elif self._thinking_start.is_reasoning:
            delta = b'{"role":"assistant","content":null,"reasoning_content":""}'
        else:
            delta = b'{"role":"assistant","content":"","reasoning_content":null}'
        end = b',"logprobs":null,"finish_reason":null}]' + self._tail
        self._around = {kind: (self._head + head, tail + end) for kind, (head, tail) in self._deltas.items()}
        self._frames = {
            kind: (b"data: " + head, tail + b"\n\n") for kind, (head, tail) in self._around.items()
        }
        return [self._chunk(delta)]

    def _chunk(self, delta: bytes, logprobs: bytes = b"null") -> ServerEvent:
        return ServerEvent(
            None, b'%b%b,"logprobs":%b,"finish_reason":null}]%b' % (self._head, delta, logprobs, self._tail)
        )

    def write(self, events: Sequence[OutputEvent], logprobs: Sequence[Logprob] = ()) -> list[ServerEvent]:
        written: list[ServerEvent] = []
        for event in events:
            kind = type(event)
            if kind is ContentText or kind is ReasoningText:
                written.append(self._text(kind, event.text, logprobs))  # type: ignore[union-attr]
            elif isinstance(event, CallArguments):
                written.append(self._arguments(event.text))
                continue
            elif isinstance(event, CallStarted):
                written.append(self._call(event.name))
            elif isinstance(event, CallEnded):
                self._calls[-1].complete = event.complete
            logprobs = ()
        return written

    def frame(self, kind: type[ReasoningText | ContentText], text: str) -> bytes:
        self._said[kind].append(text)
        before, after = self._frames[kind]
        return b"%b%b%b" % (before, encode_json(text), after)

    def _text(self, kind: type[OutputEvent], said: str, logprobs: Sequence[Logprob]) -> ServerEvent:
        self._said[kind].append(said)
        text = encode_json(said)
        if not logprobs:
            before, after = self._around[kind]
            return ServerEvent(None, b"%b%b%b" % (before, text, after))
        field = "content" if kind is ContentText else "reasoning_content"
        self._logprobs.setdefault(field, []).extend(logprobs)
        before, after = self._deltas[kind]
        return self._chunk(before + text + after, encode_json({field: list(logprobs)}))

    def _call(self, name: str) -> ServerEvent:
        without_reasoning = self._thinking_start is not None and not self._reasoning
        call = ChatCall(len(self._calls), self._call_ids.new(without_reasoning=without_reasoning), name, [])
        self._calls.append(call)
        return self._chunk(encode_json({"tool_calls": [_started(call, "")]}))

    def _arguments(self, text: str) -> ServerEvent:
        call = self._calls[-1]
        call.arguments.append(text)
        return self._chunk(
            b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (call.index, encode_json(text))
        )

    def end(self, finish: Finish, usage: Usage, stop_sequence: str | None = None) -> list[ServerEvent]:
        is_last = self._usage.add(usage)
        self._finish_reason = reason = self._reason(finish)
        before, after = self._deltas[ContentText]
        tail = b',"usage":%b}' % encode_json(usage_body(self._usage.total)) if is_last else self._tail
        data = b'%b%b""%b,"logprobs":null,"finish_reason":"%b"}]%b' % (
            self._head, before, after, reason.encode(), tail
        )  # fmt: skip
        return [ServerEvent(None, data)]

    def _reason(self, finish: Finish) -> str:
        """A call that was cut off is never reported as one to be made."""
        if finish is Finish.STOP and self._calls and self._calls[-1].complete:
            return "tool_calls"
        return "stop" if finish is Finish.UNKNOWN else finish.value

    def choice(self) -> dict[str, Any]:
        """This choice of the complete response."""
        message: dict[str, Any] = {"role": "assistant", "content": "".join(self._content)}
        if self._reasoning or (self._thinking_start is not None and self._thinking_start.is_reasoning):
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = [_started(call, "".join(call.arguments)) for call in self._calls]
        return {
            "index": self._index,
            "message": message,
            "logprobs": self._logprobs or None,
            "finish_reason": self._finish_reason,
        }

    def response(self) -> dict[str, Any]:
        return response_body(self._header, [self.choice()], self._usage.total, self._fingerprint)


def _started(call: ChatCall, arguments: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def response_body(
    header: ChatHeader, choices: list[dict[str, Any]], usage: Usage, fingerprint: str | None
) -> dict[str, Any]:
    """The complete response of any number of choices."""
    return {
        "id": header.id,
        "object": "chat.completion",
        "created": header.created,
        "model": header.model,
        "choices": choices,
        "usage": usage_body(usage),
        "system_fingerprint": fingerprint,
    }


def usage_body(usage: Usage) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
    if usage.reasoning_tokens is not None:
        body["completion_tokens_details"] = {"reasoning_tokens": usage.reasoning_tokens}
    body["prompt_cache_hit_tokens"] = usage.cached_tokens
    body["prompt_cache_miss_tokens"] = max(0, usage.prompt_tokens - usage.cached_tokens)
    return body
