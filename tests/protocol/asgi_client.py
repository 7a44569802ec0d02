"""Calls an ASGI application without a network: a request in, its answer out."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec


class Answer(msgspec.Struct):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[tuple[str | None, Any]]:
        """Server-sent events as (name, data); comments are left out."""
        events = []
        for block in self.body.decode().split("\n\n"):
            lines = [line for line in block.split("\n") if line and not line.startswith(":")]
            fields = dict(line.split(": ", 1) for line in lines)
            if "data" in fields:
                data = fields["data"]
                events.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
        return events


async def call(
    app: Any,
    method: str,
    path: str,
    body: Any = None,
    *,
    headers: dict[str, str] | None = None,
    hang_up: asyncio.Event | None = None,
) -> Answer:
    """One request. `hang_up`: when set, the client is gone."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        "server": ("test", 80),
        "client": ("test", 1),
        "scheme": "http",
        "http_version": "1.1",
    }
    parts = [{"type": "http.request", "body": raw, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if parts:
            return parts.pop(0)
        await (hang_up or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    if not sent:
        return Answer(0, {}, b"")
    data = b"".join(message.get("body", b"") for message in sent[1:])
    given = {name.decode().lower(): value.decode() for name, value in sent[0].get("headers", ())}
    return Answer(sent[0]["status"], given, data)
