"""ASGI by hand where it pays: bodies with a limit, JSON answers, event streams.

Starlette routes and mounts; its request and response objects cost more than the rest of a chunk's way, so
these three are plain ASGI. While an answer is made its client is watched: a disconnect is noticed at once and
ends the request in the engine, and long silences of a stream are broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from .errors import HttpError, error_body

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_JSON = (b"content-type", b"application/json")
_EVENT_STREAM = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or a proxy collects the stream and sends it at the end
]


async def read_body(receive: Receive, limit: int) -> bytes:
    """The whole body. Raises `HttpError` 413 as soon as it is longer than `limit` bytes."""
    parts: list[bytes] = []
    length, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        part = message.get("body", b"")
        length += len(part)
        if length > limit:
            raise HttpError(413, f"the body is longer than {limit} bytes", "request_too_large")
        parts.append(part)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


class ClientGoneError(Exception):
    """The client hung up; there is nobody to answer."""


async def send_json(
    send: Send, status: int, body: Any, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """`body` is encoded unless it is bytes already."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    length = (b"content-length", str(len(data)).encode())
    start = {"type": "http.response.start", "status": status, "headers": [_JSON, length, *(headers or ())]}
    await send(start)
    await send({"type": "http.response.body", "body": data})


async def send_error(send: Send, error: HttpError) -> None:
    headers = []
    if error.retry_after is not None:
        headers.append((b"retry-after", str(error.retry_after).encode()))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send_json(send, error.status, error_body(error), headers)


async def while_connected(work: Awaitable[Any], receive: Receive) -> Any:
    """The result of `work`, which is cancelled when the client hangs up. Raises `ClientGoneError`."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError
        return working.result()
    finally:
        await _end(working, watching)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream:
    """Sends frames of server-sent events until they end or the client is gone."""

    def __init__(self, receive: Receive, send: Send, keep_alive: float, silence: bytes) -> None:
        """`silence` is the frame sent after `keep_alive` seconds without another."""
        self._receive, self._send = receive, send
        self._keep_alive, self._silence = keep_alive, silence
        self._sent = 0  # frames, to notice silence

    def write(self, frame: bytes) -> Awaitable[None]:
        self._sent += 1
        return self._send({"type": "http.response.body", "body": frame, "more_body": True})

    async def run(self, work: Callable[[Callable[[bytes], Awaitable[None]]], Awaitable[None]]) -> None:
        """Lets `work` write, cancelling it when the client hangs up. Raises `ClientGoneError`.

        The work is a task of its own, which also makes each of its many turns a short way.
        """
        await self._send({"type": "http.response.start", "status": 200, "headers": _EVENT_STREAM})
        working = asyncio.ensure_future(work(self.write))
        watching = asyncio.ensure_future(_disconnected(self._receive))
        try:
            while not (working.done() or watching.done()):
                await self._wait(working, watching)
            if not working.done():
                raise ClientGoneError
            working.result()
            await self._send({"type": "http.response.body", "body": b""})
        finally:
            await _end(working, watching)

    async def _wait(self, *tasks: asyncio.Future[Any]) -> None:
        """Until one is done, or for one silence, which is broken."""
        sent = self._sent
        done, _ = await asyncio.wait(tasks, timeout=self._keep_alive, return_when=asyncio.FIRST_COMPLETED)
        if not done and sent == self._sent:
            await self._send({"type": "http.response.body", "body": self._silence, "more_body": True})


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
