"""An event loop whose time jumps to the next timer, so that a minute of timeouts is tested in a millisecond.

A schedule that can be replayed needs a loop without a clock, a thread or a file descriptor: then the order of
everything follows from the program alone, and a test that would hang has provably nothing left to wait for.
Rejected: patching `time.monotonic` (timers still wait for real) and a fake clock that the test advances by
hand (every test then encodes a schedule of its own).

Invariants: time moves only when nothing is ready, and exactly to the earliest timer; with no timer either,
`NothingScheduledError` names every task that waits. `run_in_executor` runs the function inside the call,
since a thread would bring real time back; wake-ups from other threads are refused.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import AbstractEventLoop, Future, Handle, Task
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class NothingScheduledError(RuntimeError):
    """Every task waits for something that nothing can bring about any more."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        waiting = "".join(f"\n  {_where(task)}" for task in asyncio.all_tasks(loop))
        super().__init__(f"at {loop.time():g} s nothing is ready and no timer is set; waiting:{waiting}")


def _where(task: Task[Any]) -> str:
    frames = task.get_stack(limit=1)
    place = f"{frames[0].f_code.co_filename}:{frames[0].f_lineno}" if frames else "not started"
    return f"{task.get_name()} in {task.get_coro()!r} at {place}"


class _Jump:
    """Stands where a loop has its selector: instead of waiting for descriptors, moves the time."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise NothingScheduledError(self._loop)
        if timeout > 0:
            self._loop.jump()
        return []

    def close(self) -> None:
        """A selector has this; there is nothing to close."""


class VirtualClockLoop(asyncio.BaseEventLoop):
    """A loop in virtual time, which starts at 0. It has timers, tasks and futures, and no input or output."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._owner = threading.get_ident()
        self._clock_resolution = 1e-9  # `BaseEventLoop` runs timers before now + resolution: it must exceed 0
        self._selector = _Jump(self)

    def time(self) -> float:
        return self._now

    def jump(self) -> None:
        """Moves the time to the earliest timer, which the base class keeps at the head of its heap."""
        timers: list[Any] = self._scheduled  # type: ignore[attr-defined]
        self._now = max(self._now, timers[0].when())

    def run_forever(self) -> None:
        self._owner = threading.get_ident()
        super().run_forever()

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> Handle:
        """Like `call_soon`. Raises `RuntimeError` in another thread than the loop's."""
        if threading.get_ident() != self._owner:
            raise RuntimeError("a loop with a virtual clock takes no wake-ups from other threads")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> Future[T]:
        """Runs `func` now: a thread's work takes no virtual time."""
        future: Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def _process_events(self, event_list: list[Any]) -> None:
        """`BaseEventLoop` hands over the descriptors that are ready: never any."""

    def _write_to_self(self) -> None:
        """`BaseEventLoop` wakes its selector: it never sleeps."""


def run_virtual(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end in virtual time, like `asyncio.run`.

    Raises what the coroutine raises, or `NothingScheduledError` when it can never end.
    """
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(coroutine)
