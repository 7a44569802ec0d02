"""Events and the response object of Responses (recipe_spec 4.4).

The protocol repeats itself: every piece of output is announced, streamed, said again whole, and all of it
once more in the last event. So the writer keeps the items it has finished; the last event is the response.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ...conversation import AssistantMessage, ToolCall
from ...parsing.events import (
    CallArguments,
    CallEnded,
    CallStarted,
    ContentText,
    OutputEvent,
    ReasoningText,
)
from ..events import CallIds, Finish, Logprob, ServerEvent, Usage, encode_json, frames
from . import body
from .convert import ResponsesRequest
from .open_items import CustomCall, FunctionCall, MessageItem, OpenItem, ReasoningItem, ToolSearchCall
from .tools import APPLY_PATCH, TOOL_SEARCH, decode_tools, echoed

_STATUS = {Finish.LENGTH: "max_output_tokens", Finish.CONTENT_FILTER: "content_filter"}


class ResponsesWriter:
    """Writes one response. `clock` gives Unix time in seconds."""

    def __init__(
        self,
        id: str,
        model: str,
        request: ResponsesRequest,
        *,
        created: int | None = None,
        clock: Callable[[], float] = time.time,
        call_ids: CallIds | None = None,
        namespaces: bool = True,
        stored: bool = False,
    ) -> None:
        """`namespaces`: give namespaced functions back by their two names. `stored`: can be gone on with."""
        self._id, self._clock = id, clock
        self._thinking = request.request.conversation.thinking_mode
        self._namespaces = request.namespaces if namespaces else {}
        tools = decode_tools(request.body.tools or (), "tools")
        self._custom = any(tool.type == "custom" for tool in tools)
        self._tool_search = any(
            isinstance(tool.tool, body.ToolSearchTool) and tool.tool.execution == "client" for tool in tools
        )
        self._call_ids = call_ids or CallIds()
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._item: OpenItem | None = None
        self._has_reasoning = False
        self._last_call_complete = True
        self._said = _Said()
        created = int(clock()) if created is None else created
        self._body = _response_body(id, model, created, request.body, echoed(tools), stored)

    def begin(self, usage: Usage, fingerprint: str | None) -> list[ServerEvent]:
        return [
            self._event("response.created", {"response": self._body}),
            self._event("response.in_progress", {"response": self._body}),
        ]

    def _event(self, name: str, fields: dict[str, Any]) -> ServerEvent:
        data = encode_json({"type": name, **fields, "sequence_number": self._sequence})
        self._sequence += 1
        return ServerEvent(name, data)

    def _events(self, news: Sequence[tuple[str, dict[str, Any]]]) -> list[ServerEvent]:
        return [self._event(name, fields) for name, fields in news]

    def write(self, events: Sequence[OutputEvent], logprobs: Sequence[Logprob] = ()) -> list[ServerEvent]:
        written: list[ServerEvent] = []
        for event in events:
            if isinstance(event, ContentText):
                self._said.content.append(event.text)
                if not isinstance(self._item, MessageItem):
                    written += self._close("completed")
                    written += self._open(MessageItem(self._id, len(self._output)))
                written += self._delta(event.text, logprobs)
                logprobs = ()
            elif isinstance(event, ReasoningText):
                self._said.reasoning.append(event.text)
                if self._item is None:
                    self._has_reasoning = True
                    written += self._open(ReasoningItem(self._id, len(self._output)))
                written += self._delta(event.text, ())
            elif isinstance(event, CallArguments):
                self._said.calls[-1][2].append(event.text)
                written += self._delta(event.text, ())
            elif isinstance(event, CallStarted):
                written += self._call(event.name)
            elif isinstance(event, CallEnded):
                self._last_call_complete = event.complete
                if event.complete:
                    written += self._close("completed")
        return written

    def frame(self, kind: type[ReasoningText | ContentText], text: str) -> bytes:
        return frames(self.write([kind(text)]))

    def _open(self, item: OpenItem) -> list[ServerEvent]:
        self._item = item
        return self._events(item.opened())

    def _close(self, status: str) -> list[ServerEvent]:
        item, self._item = self._item, None
        if item is None:
            return []
        news = item.closed(status)
        self._output.append(item.body(status))
        return self._events(news)

    def _delta(self, text: str, logprobs: Sequence[Logprob]) -> list[ServerEvent]:
        if self._item is None:
            return []
        fast = self._item.fast_delta(text, logprobs, self._sequence)
        if fast is not None:
            self._sequence += 1
            return [fast]
        return self._events(self._item.delta(text, logprobs))

    def _call(self, name: str) -> list[ServerEvent]:
        if isinstance(self._item, MessageItem):
            self._item.phase = "commentary"
        closed = self._close("completed")
        call_id = self._call_ids.new(without_reasoning=self._thinking and not self._has_reasoning)
        self._said.calls.append((call_id, name, []))
        index = len(self._output)
        item: OpenItem
        if name == APPLY_PATCH and self._custom:
            item = CustomCall(self._id, index, call_id, name)
        elif name == TOOL_SEARCH and self._tool_search:
            item = ToolSearchCall(self._id, index, call_id)
        else:
            space, local = self._namespaces.get(name, (None, name))
            item = FunctionCall(self._id, index, call_id, local, space)
        return closed + self._open(item)

    def end(self, finish: Finish, usage: Usage, stop_sequence: str | None = None) -> list[ServerEvent]:
        reason = _STATUS.get(finish)
        is_cut = reason is not None or not self._last_call_complete
        closed = self._close("incomplete" if is_cut else "completed")
        status = "completed" if reason is None else "incomplete"
        self._body = self._body | {
            "status": status,
            "completed_at": int(self._clock()),
            "incomplete_details": None if reason is None else {"reason": reason},
            "output": self._output,
            "usage": _usage_body(usage),
        }
        return [*closed, self._event(f"response.{status}", {"response": self._body})]

    def response(self) -> dict[str, Any]:
        return self._body

    def message(self) -> AssistantMessage:
        """What was said, for a conversation to go on with."""
        said = self._said
        calls = tuple(ToolCall(call_id, name, "".join(pieces)) for call_id, name, pieces in said.calls)
        return AssistantMessage("".join(said.content), "".join(said.reasoning), calls or None)


class _Said:
    """The output as the model's own next prompt will show it."""

    def __init__(self) -> None:
        self.reasoning: list[str] = []
        self.content: list[str] = []
        self.calls: list[tuple[str, str, list[str]]] = []  # id, name, pieces of the arguments


def _usage_body(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.output_tokens,
    }


def _response_body(
    id: str, model: str, created: int, request: body.ResponsesBody, tools: list[dict[str, Any]], stored: bool
) -> dict[str, Any]:
    """The response object before any output: the request's settings, as requested."""
    reasoning, text = request.reasoning or body.Reasoning(), request.text or body.TextConfig()
    choice = request.tool_choice
    return {
        "id": id,
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "content_filters": None,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": None,
        "model": model,
        "moderation": None,
        "output": [],
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": request.previous_response_id if stored else None,
        "prompt_cache_key": None,
        "prompt_cache_retention": None,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": None,
        "service_tier": "default",
        "store": stored,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": msgspec.to_builtins(text),
        "tool_choice": "auto" if choice is None else msgspec.to_builtins(choice),
        "tools": tools,
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": request.user,
        "metadata": {},
    }
