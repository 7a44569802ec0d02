"""Actors: one loop over one bounded, typed mailbox each, supervised as a group.

An engine is a handful of tasks that must never deadlock, never lose a message silently, and never leave one
another running after a failure. So: a mailbox accepts the message types its actor declares and nothing else;
it is bounded, and a full one is either waited for (`send`, for callers outside the engine) or an error
(`post`, between actors, whose traffic is bounded by design and for which callers leave room: a full one means
a bug, not load). Rejected: asyncio.Queue, which is 1.7 times slower per hop, accepts anything, and cannot say
how deep it has been.

Invariant: a handler runs to its end before the next message is taken, and only an actor's own handlers touch
its state.
"""

from __future__ import annotations

import asyncio
import importlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

import anyio

from stepahead.engine.tracing.recorder import SILENT, Recorder
from stepahead.engine.types import MailboxStatistics

M = TypeVar("M")
M_contra = TypeVar("M_contra", contravariant=True)
R = TypeVar("R")

with suppress(ImportError):
    # anyio imports its backend at first use, which would be 80 ms in the middle of somebody's event loop.
    importlib.import_module("anyio._backends._asyncio")

BURST = 32
"""Messages an actor handles before it lets the loop run others, so that a backlog never freezes the loop."""


class MailboxFullError(RuntimeError):
    """A message between actors found no room: the flow of messages is not as bounded as it was designed."""


class MailboxClosedError(RuntimeError):
    """A message for an actor that has ended."""


class Address(Protocol[M_contra]):
    """A mailbox as its senders see it: one that takes more kinds of messages is as good."""

    def post(self, message: M_contra) -> None: ...

    async def send(self, message: M_contra) -> None: ...


class Mailbox(Generic[M]):
    """A bounded queue of messages of declared types, read by one actor, on one event loop."""

    __slots__ = (
        "_accepts",
        "_capacity",
        "_closed",
        "_high_water",
        "_messages",
        "_name",
        "_outside_capacity",
        "_posted",
        "_reader",
        "_room",
    )

    def __init__(self, name: str, accepts: Sequence[type], capacity: int) -> None:
        self._name, self._accepts, self._capacity = name, frozenset(accepts), capacity
        self._outside_capacity = capacity - capacity // 4
        self._messages: deque[M] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._room: deque[asyncio.Future[None]] = deque()
        self._high_water = self._posted = 0
        self._closed = False

    def post(self, message: M) -> None:
        """Appends without waiting. Raises `TypeError`, `MailboxFullError` or `MailboxClosedError`."""
        if len(self._messages) >= self._capacity:
            raise MailboxFullError(f"the mailbox of {self._name} holds its {self._capacity} messages already")
        self._append(message)

    async def send(self, message: M) -> None:
        """Appends, waiting for room in order of arrival. The last quarter of the room is for `post`."""
        while len(self._messages) >= self._outside_capacity and not self._closed:
            room = asyncio.get_running_loop().create_future()
            self._room.append(room)
            try:
                await room
            except asyncio.CancelledError:
                if room.done() and not room.cancelled():
                    self._offer_room()  # the room given to us belongs to the next one who waits
                raise
        self._append(message)

    async def receive(self) -> M:
        """The oldest message, waited for."""
        while not self._messages:
            self._reader = asyncio.Future()
            await self._reader
        return self._pop()

    def receive_nowait(self) -> M | None:
        """The oldest message, or None."""
        return self._pop() if self._messages else None

    @property
    def next(self) -> M | None:
        """The oldest message, left where it is, or None."""
        return self._messages[0] if self._messages else None

    def __len__(self) -> int:
        return len(self._messages)

    def close(self) -> list[M]:
        """Refuses further messages and hands back those nobody will read. Idempotent."""
        self._closed = True
        left = list(self._messages)
        self._messages.clear()
        while self._room:
            self._offer_room()
        return left

    def statistics(self) -> MailboxStatistics:
        return MailboxStatistics(
            len(self._messages), self._capacity, self._high_water, self._posted, len(self._room)
        )

    def _refusal(self, message: M) -> Exception:
        if type(message) not in self._accepts:
            return TypeError(f"{self._name} does not take {type(message).__name__}")
        return MailboxClosedError(f"{self._name} has ended")

    def _append(self, message: M) -> None:
        if self._closed or type(message) not in self._accepts:
            raise self._refusal(message)
        messages = self._messages
        messages.append(message)
        self._posted += 1
        if (depth := len(messages)) > self._high_water:
            self._high_water = depth
        if (reader := self._reader) is not None:
            self._reader = None
            if not reader.done():
                reader.set_result(None)

    def _pop(self) -> M:
        message = self._messages.popleft()
        if self._room and len(self._messages) < self._outside_capacity:
            self._offer_room()
        return message

    def _offer_room(self) -> None:
        while self._room:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
                return


class Reply(Generic[R]):
    """The answer slot of a message that asks; awaited once by the asker, filled once by the actor."""

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[R] = asyncio.get_running_loop().create_future()

    def send(self, value: R) -> None:
        """Answers; ignored when the asker has gone."""
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def __await__(self) -> Generator[Any, None, R]:
        return self._future.__await__()


class Actor(ABC, Generic[M]):
    """One task, one mailbox, one `handle`. Subclasses name themselves and list what they accept."""

    name: str
    accepts: tuple[type, ...]
    trace: Recorder = SILENT
    """Where spans go. Set by whoever wires the actors, before they run."""

    def __init__(self, capacity: int = 8192) -> None:
        self.mailbox: Mailbox[M] = Mailbox(self.name, self.accepts, capacity)

    @abstractmethod
    async def handle(self, message: M) -> None:
        """Reacts to one message. An error that leaves it ends the engine: catch per-request ones inside."""

    async def run(self) -> None:
        """Handles messages until cancelled, yielding to the loop at least every `BURST` of them."""
        mailbox, handle = self.mailbox, self.handle
        while True:
            message: M | None = await mailbox.receive()
            burst = BURST
            while message is not None:
                await handle(message)
                burst -= 1
                if not burst:
                    burst = BURST
                    await asyncio.sleep(0)
                message = mailbox.receive_nowait()


class ActorFailedError(RuntimeError):
    """An actor's handler raised; the cause is `__cause__`."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the actor {name} failed")
        self.name = name


class Supervisor:
    """Runs actors as one group: the first failure stops all and is reported once; none escapes."""

    def __init__(self, actors: Sequence[Actor[Any]], on_failure: Callable[[ActorFailedError], None]) -> None:
        self._actors, self._on_failure = tuple(actors), on_failure
        self._scope = anyio.CancelScope()
        self.failure: ActorFailedError | None = None

    async def run(self) -> None:
        """Returns after `stop` or a reported failure; all actors have ended, their mailboxes are closed."""
        try:
            with self._scope:
                async with anyio.create_task_group() as group:
                    for actor in self._actors:
                        group.start_soon(self._guard, actor, name=actor.name)
        finally:
            for actor in self._actors:
                actor.mailbox.close()

    def stop(self) -> None:
        """Cancels every actor at its next wait. Idempotent."""
        self._scope.cancel()

    def statistics(self) -> dict[str, MailboxStatistics]:
        return {actor.name: actor.mailbox.statistics() for actor in self._actors}

    async def _guard(self, actor: Actor[Any]) -> None:
        try:
            await actor.run()
        except Exception as error:
            if self.failure is None:
                self.failure = ActorFailedError(actor.name)
                self.failure.__cause__ = error
                self.stop()
                self._on_failure(self.failure)
