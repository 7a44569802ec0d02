"""The async generator a caller reads, and everything that must hold however the caller leaves it.

A consumer may break out of its loop, be cancelled, time out, drop the object, or have it collected by the
garbage collector in another thread; each must give back slots and blocks, and none may need an `await` that
is no longer allowed. So leaving is one call that only leaves a note for the loop. Rejected: an `async def`
generator, whose clean-up runs in a task made by the loop's finalizer hook (or never, if there is none), and
whose error for a second reader names neither stream nor reader.

Invariant: a stream registered with the engine is unregistered exactly once, by whoever ends it first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from .errors import StreamInUseError
from .types import Delta

if TYPE_CHECKING:
    from .intake import Intake, Registration, Submission


class Stream(AsyncGenerator[Delta, None]):
    """Deltas of one request, from submission (at the first `anext`, or at `start`) to the terminal event.

    Ends by itself after the last delta of the last choice; raises the request's error, once. Also an async
    context manager that closes itself. Leaving it in any way aborts the request.
    """

    def __init__(self, intake: Intake, submission: Submission) -> None:
        """Use `Engine.stream`."""
        self._intake = intake
        self._submission: Submission | None = submission
        self._registration: Registration | None = None
        self._starting = False

    async def start(self) -> Self:
        """Validates and queues the request, if that has not happened, and returns when it is queued.

        Raises `InvalidRequestError`, `QueueFullError` or `EngineError`. For callers that must know before the
        first token, such as an HTTP handler about to choose a status.
        """
        if self._starting:
            raise StreamInUseError
        if self._submission is not None:
            submission, self._submission = self._submission, None
            self._starting = True
            try:
                self._registration = await self._intake.submit(submission)
            finally:
                self._starting = False
        return self

    async def __anext__(self) -> Delta:
        if self._submission is not None or self._starting:
            await self.start()
        registration = self._registration
        if registration is None:
            raise StopAsyncIteration
        if asyncio.get_running_loop() is not self._intake.loop:
            self._intake.check_loop()
        channel = registration.channel
        try:
            if not channel.ready:
                try:
                    await channel.wait()
                finally:
                    channel.waited()
            delta = channel.take()
        except StreamInUseError:
            raise  # the task that reads goes on
        except BaseException:
            self._leave()
            raise
        if delta is None:
            self._leave()
            if registration.trace is not None:
                await registration.trace.written()
            raise StopAsyncIteration
        if registration.followed:
            self._intake.tracer.recorder.delivered(registration.keys[delta.index], len(delta.token_ids))
        return delta

    async def aclose(self) -> None:
        """Aborts what still runs. Raises `StreamInUseError` while another task awaits a delta."""
        if self._starting or (self._registration is not None and self._registration.channel.in_use):
            raise StreamInUseError
        self._submission = None
        self._leave()

    async def asend(self, value: None) -> Delta:
        """Like `anext`: there is nothing to send."""
        return await self.__anext__()

    async def athrow(self, typ: Any, val: Any = None, tb: TracebackType | None = None) -> Delta:
        """Closes the stream and raises, as a generator does that does not catch."""
        await self.aclose()
        error = typ if isinstance(typ, BaseException) else typ() if val is None else val
        raise error.with_traceback(tb) if tb is not None else error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        """Possibly on another thread, possibly in the middle of anything: only leaves a note."""
        registration = getattr(self, "_registration", None)
        if registration is not None:
            registration.leave_threadsafe()

    def _leave(self) -> None:
        registration, self._registration = self._registration, None
        if registration is not None:
            registration.leave()
