"""Output items of a response while they are written: what is announced, streamed and said at the end."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ...json_text import JsonTextError, parse
from ..events import Logprob, ServerEvent, encode_json

News = list[tuple[str, dict[str, Any]]]
"""Event names with their fields, without the sequence number."""


class OpenItem:
    """One item. Subclasses say what it looks like."""

    prefix = ""
    delta_name = ""

    def __init__(self, response_id: str, index: int) -> None:
        """`index`: its place in the output."""
        self.pieces: list[str] = []
        self.index = index
        self.id = f"{self.prefix}_{response_id}_{index}"
        self._head: bytes | None = None

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}

    def opened(self) -> News:
        return [
            ("response.output_item.added", {"item": self.body("in_progress"), "output_index": self.index})
        ]

    def _delta_place(self) -> dict[str, Any]:
        """The fields of a delta that do not change."""
        return self._place()

    def delta(self, text: str, logprobs: Sequence[Logprob]) -> News:
        self.pieces.append(text)
        return [(self.delta_name, {"delta": text, **self._delta_place()})]

    def closed(self, status: str) -> News:
        return [("response.output_item.done", {"item": self.body(status), "output_index": self.index})]

    def body(self, status: str) -> dict[str, Any]:
        raise NotImplementedError

    def fast_delta(self, text: str, logprobs: Sequence[Logprob], sequence: int) -> ServerEvent | None:
        """The usual delta from a prepared head, or None for an item whose deltas are not usual."""
        if logprobs or not self.delta_name:
            return None
        if self._head is None:
            fields = {"type": self.delta_name, **self._delta_place()}
            self._head = encode_json(fields)[:-1] + b',"delta":'
        self.pieces.append(text)
        data = b'%b%b,"sequence_number":%d}' % (self._head, encode_json(text), sequence)
        return ServerEvent(self.delta_name, data)


class _TextItem(OpenItem):
    """An item with one part of text."""

    done_name = ""

    def _part(self, text: str) -> dict[str, Any]:
        raise NotImplementedError

    def _content_place(self) -> dict[str, Any]:
        return {"content_index": 0, **self._place()}

    def opened(self) -> News:
        part = {"part": self._part(""), **self._content_place()}
        return [*super().opened(), ("response.content_part.added", part)]

    def closed(self, status: str) -> News:
        done = {"text": self.text, **self._done_fields(), **self._content_place()}
        part = {"part": self._part(self.text), **self._content_place()}
        return [(self.done_name, done), ("response.content_part.done", part), *super().closed(status)]

    def _done_fields(self) -> dict[str, Any]:
        return {}


class ReasoningItem(_TextItem):
    prefix = "rs"
    delta_name = "response.reasoning_text.delta"
    done_name = "response.reasoning_text.done"

    def __init__(self, response_id: str, index: int) -> None:
        super().__init__(response_id, index)
        self._encrypted = f"{response_id}-{index}"

    def _part(self, text: str) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": text}

    def _delta_place(self) -> dict[str, Any]:
        return self._content_place()

    def body(self, status: str) -> dict[str, Any]:
        return {
            "type": "reasoning",
            "id": self.id,
            "status": status,
            "content": [] if status == "in_progress" else [self._part(self.text)],
            "summary": [],
            "encrypted_content": self._encrypted,
        }


class MessageItem(_TextItem):
    """Text for the reader. Its phase turns to commentary when a call follows it."""

    prefix = "msg"
    delta_name = "response.output_text.delta"
    done_name = "response.output_text.done"

    def __init__(self, response_id: str, index: int) -> None:
        super().__init__(response_id, index)
        self.phase = "final_answer"
        self._logprobs: list[Logprob] = []

    def _part(self, text: str) -> dict[str, Any]:
        logprobs = msgspec.to_builtins(self._logprobs)
        return {"type": "output_text", "annotations": [], "logprobs": logprobs, "text": text}

    def _done_fields(self) -> dict[str, Any]:
        return {"logprobs": msgspec.to_builtins(self._logprobs)}

    def _delta_place(self) -> dict[str, Any]:
        return {"logprobs": [], **self._content_place()}

    def delta(self, text: str, logprobs: Sequence[Logprob]) -> News:
        self.pieces.append(text)
        self._logprobs += logprobs
        fields = {**self._delta_place(), "delta": text, "logprobs": msgspec.to_builtins(list(logprobs))}
        return [(self.delta_name, fields)]

    def body(self, status: str) -> dict[str, Any]:
        return {
            "type": "message",
            "id": self.id,
            "status": status,
            "role": "assistant",
            "phase": self.phase,
            "content": [] if status == "in_progress" else [self._part(self.text)],
        }


class FunctionCall(OpenItem):
    prefix = "fc"
    delta_name = "response.function_call_arguments.delta"

    def __init__(self, response_id: str, index: int, call_id: str, name: str, namespace: str | None) -> None:
        super().__init__(response_id, index)
        self._call_id, self._name, self._namespace = call_id, name, namespace

    def closed(self, status: str) -> News:
        done = {"arguments": self.text, **self._place()}
        return [("response.function_call_arguments.done", done), *super().closed(status)]

    def body(self, status: str) -> dict[str, Any]:
        space = {} if self._namespace is None else {"namespace": self._namespace}
        return {
            "type": "function_call",
            "id": self.id,
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            **space,
            "arguments": self.text,
        }


_INPUT_HEAD = '{"input": "'
_STRING_INSIDE = re.compile(r'(?:[^"\\]|\\.)*', re.DOTALL)


class CustomCall(OpenItem):
    """A call of a custom tool, whose one argument is free text: shown as text, not as JSON.

    Arguments of another form are passed on as they are.
    """

    prefix = "ctc"

    def __init__(self, response_id: str, index: int, call_id: str, name: str) -> None:
        super().__init__(response_id, index)
        self._call_id, self._name = call_id, name
        self._undecided: str | None = ""
        self._is_text = True
        self._is_whole = False  # the text's closing quote was seen

    def delta(self, text: str, logprobs: Sequence[Logprob]) -> News:
        if self._undecided is not None:
            self._undecided += text
            if len(self._undecided) < len(_INPUT_HEAD) and _INPUT_HEAD.startswith(self._undecided):
                return []
            text, self._undecided = self._undecided, None
            self._is_text = text.startswith(_INPUT_HEAD)
            if self._is_text:
                text = text[len(_INPUT_HEAD) :]
        return self._shown(self._unescaped(text) if self._is_text else text)

    def _unescaped(self, text: str) -> str:
        """The characters of a piece of a JSON string, up to its end. Pieces never split an escape."""
        match = _STRING_INSIDE.match(text)
        if match is None or self._is_whole:
            return ""
        self._is_whole = match.end() < len(text)
        decoded: str = msgspec.json.decode(f'"{match[0]}"')
        return decoded

    def _shown(self, text: str) -> News:
        if not text:
            return []
        self.pieces.append(text)
        return [("response.custom_tool_call_input.delta", {"delta": text, **self._place()})]

    def closed(self, status: str) -> News:
        rest = [] if self._undecided is None else self._shown(self._undecided)
        done = ("response.custom_tool_call_input.done", {"input": self.text, **self._place()})
        return [*rest, done, *super().closed(status)]

    def body(self, status: str) -> dict[str, Any]:
        return {
            "type": "custom_tool_call",
            "id": self.id,
            "status": status,
            "call_id": self._call_id,
            "name": self._name,
            "input": self.text,
        }


class ToolSearchCall(OpenItem):
    """A call that the client answers with tools. Its arguments are an object, so it is shown when whole."""

    prefix = "tsc"

    def __init__(self, response_id: str, index: int, call_id: str) -> None:
        super().__init__(response_id, index)
        self._call_id = call_id

    def delta(self, text: str, logprobs: Sequence[Logprob]) -> News:
        self.pieces.append(text)
        return []

    def body(self, status: str) -> dict[str, Any]:
        return {
            "type": "tool_search_call",
            "id": self.id,
            "status": status,
            "call_id": self._call_id,
            "execution": "client",
            "arguments": self._parsed(),
        }

    def _parsed(self) -> Any:
        try:
            return parse(self.text)
        except JsonTextError:
            return {}
