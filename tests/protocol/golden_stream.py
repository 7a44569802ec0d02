"""Runs a stored stream case through our stream."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from stepahead.recipe.parsing.options import ThinkingStart
from stepahead.recipe.protocols.chat import convert as chat
from stepahead.recipe.protocols.chat.writer import ChatHeader, ChatWriter
from stepahead.recipe.protocols.events import Finish, ServerEvent, Writer
from stepahead.recipe.protocols.messages import convert as messages
from stepahead.recipe.protocols.messages.writer import MessagesWriter
from stepahead.recipe.protocols.request import ConversationRequest
from stepahead.recipe.protocols.responses import convert as responses
from stepahead.recipe.protocols.responses.writer import ResponsesWriter
from stepahead.recipe.stream import OutputStream
from stepahead.recipe.vocabulary import Vocabulary

from . import golden

FINISH = {"Stop": Finish.STOP, "Length": Finish.LENGTH, "ContentFilter": Finish.CONTENT_FILTER}


class Run:
    """One run of a case: push chunks, then look at events and response."""

    def __init__(self, given: dict[str, Any], vocabulary: Vocabulary | None = None) -> None:
        request, self.writer = _request_and_writer(given)
        parsing = msgspec.structs.replace(request.parsing, **_parsing(given.get("parsing", {})))
        uses_tokens = any("tokens" in chunk for chunk in given.get("chunks", ()))
        self.stream = OutputStream(
            self.writer,
            parsing,
            vocabulary if uses_tokens else None,
            top_logprobs=20 if any("logprobs" in chunk for chunk in given.get("chunks", ())) else None,
        )
        self.events_per_push: list[int] = []
        self.events: list[ServerEvent] = []

    def push(self, chunk: dict[str, Any]) -> None:
        if "ready" in chunk:
            ready = chunk["ready"]
            new = self.stream.begin(
                ready.get("prompt_tokens", 0),
                ready.get("prompt_cache_hit_tokens", 0),
                ready.get("system_fingerprint"),
            )
        elif "text" in chunk:
            new = self.stream.push_text(chunk["text"], chunk.get("token_count", 0))
        elif "tokens" in chunk:
            new = self.stream.push_tokens(chunk["tokens"], chunk.get("logprobs"))
        else:
            new = self.stream.finish(FINISH[chunk["finish"]])
        self.events += new
        self.events_per_push.append(len(new))

    def run(self, chunks: list[dict[str, Any]]) -> Run:
        for chunk in chunks:
            self.push(chunk)
            if self.stream.finished:
                break
        self.events += self.stream.finish(Finish.UNKNOWN)
        return self

    def response(self) -> Any:
        return golden.normalise(json.loads(msgspec.json.encode(self.writer.response())))

    def plain_events(self) -> list[dict[str, Any]]:
        return [
            {"event": event.name, "data": golden.normalise(json.loads(event.data))} for event in self.events
        ]


def _parsing(plain: dict[str, Any]) -> dict[str, Any]:
    changed = dict(plain)
    if "thinking_initial_stage" in changed:
        stage = changed.pop("thinking_initial_stage")
        changed["thinking_start"] = None if stage is None else ThinkingStart(stage)
    if "stop_sequences" in changed:
        changed["stop_sequences"] = tuple(changed["stop_sequences"])
    return changed


def _request_and_writer(given: dict[str, Any]) -> tuple[ConversationRequest, Writer]:
    options = golden.conversion_options(given.get("options"))
    raw = json.dumps(given["body"])
    response_id, model = given.get("id", "resp-1"), given.get("model", "m-1")
    created = given.get("created", 1_700_000_000)
    if given["protocol"] == "chat":
        request = chat.convert(raw, options)
        header = ChatHeader(response_id, model, created)
        start = _parsing(given.get("parsing", {})).get("thinking_start", request.parsing.thinking_start)
        usage_on_every = request.include_usage or not request.stream
        return request, ChatWriter(header, start, usage_on_every_chunk=usage_on_every)
    if given["protocol"] == "messages":
        request = messages.convert(raw, options)
        thinking = request.conversation.thinking_mode
        return request, MessagesWriter(response_id, model, thinking, signature=given.get("signature"))
    converted = responses.convert_with_body(raw, options)
    writer = ResponsesWriter(response_id, model, converted, created=created, namespaces=False)
    return converted.request, writer


def merged(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Events with neighbouring deltas of one kind and place joined, and sequence numbers left out."""
    result: list[dict[str, Any]] = []
    for event in events:
        data = {key: value for key, value in event["data"].items() if key != "sequence_number"}
        path = _delta_path(data)
        if path and result and _is_same_place(result[-1]["data"], data, path):
            _set(result[-1]["data"], path, _get(result[-1]["data"], path) + _get(data, path))
        else:
            result.append({"event": event["event"], "data": json.loads(json.dumps(data))})
    return result


_PATHS: list[list[Any]] = [
    ["choices", 0, "delta", "tool_calls", 0, "function", "arguments"],
    ["choices", 0, "delta", "content"],
    ["choices", 0, "delta", "reasoning_content"],
    ["delta", "text"],
    ["delta", "thinking"],
    ["delta", "partial_json"],
    ["delta"],
]


def _delta_path(data: dict[str, Any]) -> list[Any] | None:
    for path in _PATHS:
        try:
            if isinstance(_get(data, path), str) and _get(data, path):
                return path
        except (KeyError, IndexError, TypeError):
            continue
    return None


def _get(value: Any, path: list[Any]) -> Any:
    for key in path:
        value = value[key]
    return value


def _set(value: Any, path: list[Any], new: Any) -> None:
    _get(value, path[:-1])[path[-1]] = new


def _is_same_place(first: dict[str, Any], second: dict[str, Any], path: list[Any]) -> bool:
    if _delta_path(first) != path:
        return False
    emptied = []
    for data in (first, second):
        copy = json.loads(json.dumps(data))
        _set(copy, path, "")
        emptied.append(copy)
    return bool(emptied[0] == emptied[1])
