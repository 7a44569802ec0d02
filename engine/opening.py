"""What `Engine.open` returns: to be entered, awaited, or (in a script) entered without a loop.

Opening must be awaited and closing must not be forgotten, and each kind of program has its own place for the
two. One object with three faces keeps `Engine.open(...)` the only spelling. In a script the loop runs only
inside our own calls, in the caller's thread, so there is no thread to join and Ctrl-C works as in any code.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, Protocol, TypeVar

from .errors import EngineError


class Closable(Protocol):
    """What can be opened: it closes, and remembers the private loop of a script."""

    offline: asyncio.Runner | None

    async def close(self) -> None: ...


E = TypeVar("E", bound=Closable)


class LoopRunningError(EngineError):
    """The blocking form was used where a loop runs, which it would block."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"{what} would block the event loop running in this thread; use {instead}")


class Opening(Generic[E]):
    """An engine that is not open yet. Each opening opens one engine."""

    def __init__(self, open_engine: Callable[[], Awaitable[E]]) -> None:
        self._open = open_engine
        self._engine: E | None = None

    def __await__(self) -> Generator[Any, None, E]:
        return self._open().__await__()

    async def __aenter__(self) -> E:
        self._engine = await self._open()
        return self._engine

    async def __aexit__(self, *exc_info: object) -> None:
        assert self._engine is not None
        await self._engine.close()

    def __enter__(self) -> E:
        check_no_loop("`with Engine.open(...)`", "`async with Engine.open(...)`")
        runner = asyncio.Runner(loop_factory=new_loop)
        try:
            self._engine = runner.run(_awaited(self._open))
        except BaseException:
            runner.close()
            raise
        self._engine.offline = runner
        return self._engine

    def __exit__(self, *exc_info: object) -> None:
        assert self._engine is not None
        runner = self._engine.offline
        assert runner is not None
        with runner:
            runner.run(self._engine.close())


def check_no_loop(what: str, instead: str) -> None:
    """Raises `LoopRunningError` in a thread whose event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise LoopRunningError(what, instead)


def new_loop() -> asyncio.AbstractEventLoop:
    """The loop of our own entry points: uvloop where it exists."""
    try:
        import uvloop
    except ImportError:  # not built for Windows
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


async def _awaited(make: Callable[[], Awaitable[E]]) -> E:
    return await make()
