"""Conversations out of this repository's own lines, prose and code: the same ones in every run."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

Plain = dict[str, Any]

_ROOT = Path(__file__).parents[2]
_SOURCES = ("config", "engine", "stream", "types", "validation")
_FILES = ("README.md", *(f"engine/{name}.py" for name in _SOURCES))


class Author:
    def __init__(self) -> None:
        text = "\n".join((_ROOT / name).read_text() for name in _FILES)
        self._lines = [line for line in text.splitlines() if line.strip()]
        self._random = random.Random(0)

    def lines(self, count: int) -> str:
        start = self._random.randrange(len(self._lines) - count)
        return "\n".join(self._lines[start : start + count])

    def conversation(self, messages: int) -> Plain:
        """A task with six tools: questions, calls with their results, answers."""
        said: list[Plain] = [{"role": "system", "content": self.lines(20)}]
        calls = 0
        while len(said) < messages - 1:
            said.append({"role": "user", "content": self.lines(6)})
            for _ in range(2):
                calls += 1
                said += self._call(f"call_{calls}")
            said.append({"role": "assistant", "content": self.lines(5), "reasoning_content": self.lines(3)})
        said = said[: messages - 1]
        while said[-1].get("tool_calls"):
            said.pop()
        said.append({"role": "user", "content": self.lines(6)})
        return {"messages": said, "tools": [self._tool(n) for n in range(6)], "thinking_mode": True}

    def _call(self, call_id: str) -> list[Plain]:
        arguments = json.dumps({"path": self.lines(1), "limit": 40})
        call = {"id": call_id, "name": "tool_1", "arguments": arguments}
        asked = {"content": self.lines(1), "reasoning_content": self.lines(3), "tool_calls": [call]}
        return [
            {"role": "assistant", **asked},
            {"role": "tool", "content": self.lines(8), "tool_call_id": call_id},
        ]

    def _tool(self, number: int) -> Plain:
        path = {"type": "string", "description": self.lines(1)}
        properties = {"path": path, "limit": {"type": "integer"}}
        parameters = {"type": "object", "properties": properties, "required": ["path"]}
        return {"name": f"tool_{number}", "description": self.lines(2), "parameters": parameters}


def longer(plain: Plain, number: int) -> Plain:
    """The conversation with an answer and a new question."""
    answer = {"role": "assistant", "content": "It is done.", "reasoning_content": "So it is."}
    question = {"role": "user", "content": f"And then, for the {number}th time?"}
    return plain | {"messages": [*plain["messages"], answer, question]}


def chat_body(plain: Plain) -> bytes:
    """The conversation as a Chat Completions request."""
    messages = []
    for message in plain["messages"]:
        body = dict(message)
        if "tool_calls" in body:
            body["tool_calls"] = [_chat_call(call) for call in body["tool_calls"]]
        messages.append(body)
    tools = [{"type": "function", "function": tool} for tool in plain["tools"]]
    body = {"model": "DeepSeek-V4.1-Flash", "messages": messages, "tools": tools, "stream": True}
    return json.dumps(body, ensure_ascii=False).encode()


def _chat_call(call: Plain) -> Plain:
    function = {key: call[key] for key in ("name", "arguments")}
    return {"id": call["id"], "type": "function", "function": function}
