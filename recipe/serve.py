"""A server of its own: an open engine behind uvicorn, in the engine's loop.

uvicorn is told to leave the loop and the signals to us: the loop is the engine's, and an interrupt first
stops accepting, then lets answers finish for a while, then ends what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn

from .http import create_app
from .server.engine_like import EngineLike
from .server.options import ServerOptions

_BACKLOG = 2048


async def serve(
    engine: EngineLike,
    options: ServerOptions,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    grace_seconds: int = 10,
    on_ready: Callable[[str], None] = lambda address: None,
) -> None:
    """Serves until interrupted or cancelled. Port 0 takes a free one; `on_ready` gets the address.

    Raises `OSError` when the address is taken. The engine is the caller's to close.
    """
    listener = _listener(host, port)
    config = uvicorn.Config(
        create_app(engine, options),
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=grace_seconds,
    )
    server = _Server(config)
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        with _interrupts(server):
            on_ready(address_of(listener))
            await asyncio.shield(running)
    except asyncio.CancelledError:
        server.should_exit = True
        await running
        raise
    finally:
        listener.close()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The loop's, see `_interrupts`: uvicorn's own would be set in whatever thread and loop this is."""
        yield


@contextlib.contextmanager
def _interrupts(server: uvicorn.Server) -> Iterator[None]:
    """The first signal ends the server gently, the second at once. Nothing outside the main thread."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True

    signals = (signal.SIGINT, signal.SIGTERM)
    taken = []
    for number in signals:
        with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
            loop.add_signal_handler(number, stop)
            taken.append(number)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)  # now: who hears of the address may connect at once
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
