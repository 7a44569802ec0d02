"""Tells event loops that points of a stream were reached: a busy loop looks, a loop about to sleep is woken.

A thread that sleeps in `cudaEventSynchronize` costs a sleeping loop nothing, and posts to it. It does cost a
busy one: when the thread wakes it wants the interpreter's lock, which the loop drops in every call of the
library, and takes back late. So a mark is given to the thread only when a turn of the loop had nothing else
to do. Until then the loop asks for it once a turn, 0.2 us each. Rejected: asking until it is reached (a loop
that never sleeps), a thread per ticket, and `cudaLaunchHostFunc`, whose callback would have to take the lock
inside the driver's thread while the stream waits.

One thread per watched stream and not per device: a mark behind a long copy must not hold up a decode step.

Invariant: of the marks that are waited for, the oldest is waited for first, and all marks not younger than
the one reached are settled in the order in which they were recorded.
"""

from __future__ import annotations

import heapq
import queue
import threading
import time
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from .device import DeviceError, Event, Ticket
from .nvidia_events import Mark


class _Watched(NamedTuple):
    serial: int
    number: int  # orders tickets of one mark
    mark: Mark
    loop: AbstractEventLoop
    ticket: Ticket


QUIET_NS = 30_000
"""A shorter turn of the loop did nothing else: an empty one takes 2 us (uvloop) to 15 us (asyncio)."""

_Queue = queue.SimpleQueue["_Watched | None"]
Reached = Callable[[int], None]


class Watcher:
    """The tickets of one stream. Used from the loop's thread."""

    def __init__(self, name: str, device_index: int, reached: Reached) -> None:
        """`reached(serial)` is called before tickets of that mark are settled, on the watcher's thread or on
        the loop's.
        """
        self._reached = reached
        self._queue: _Queue = queue.SimpleQueue()
        self._count = 0
        self._pending: dict[int, _Watched] = {}
        self._looked_for: list[_Watched] = []  # of them, those that the thread does not know
        self._looking, self._looked_ns = False, 0
        self._thread = threading.Thread(
            target=_run, args=(self._queue, device_index, reached), name=f"stepahead-cuda-{name}", daemon=True
        )
        self._thread.start()

    def watch(self, mark: Mark, loop: AbstractEventLoop) -> Ticket:
        ticket = Ticket(mark)
        number = self._count
        self._count += 1
        watched = self._pending[number] = _Watched(mark.serial, number, mark, loop, ticket)
        ticket.on_settled(lambda _: self._forget(number))
        self._looked_for.append(watched)
        if not self._looking:
            self._looking, self._looked_ns = True, time.perf_counter_ns()
            loop.call_soon(self._look, loop)
        return ticket

    def _look(self, loop: AbstractEventLoop) -> None:
        """Once a turn of the loop, as long as turns take their time."""
        before, self._looked_ns = self._looked_ns, time.perf_counter_ns()
        busy = self._looked_ns - before > QUIET_NS
        try:
            for watched in sorted(self._pending.values(), key=_age):
                if not watched.mark.reached:
                    break
                busy = True  # whoever is told has something to do
                self._reached(watched.serial)
                watched.ticket.settle(watched.mark.error)
        finally:  # who is told may raise, or ask for another mark
            self._looked_for = [watched for watched in self._looked_for if not watched.ticket.settled]
            if self._looked_for and busy:
                loop.call_soon(self._look, loop)
            else:
                self._looking = False
                self._hand_over()

    def _hand_over(self) -> None:
        for watched in self._looked_for:
            self._queue.put(watched)
        self._looked_for.clear()

    def _forget(self, number: int) -> None:
        self._pending.pop(number, None)

    def stop(self, seconds: float = 0.0) -> None:
        """The thread ends when it has settled what was asked; waited for so long at most. Idempotent."""
        self._hand_over()
        self._queue.put(None)
        if seconds and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def abandon(self, error: DeviceError) -> None:
        """On the loop's thread, after `stop`: the loop may not run again, so tickets are settled here."""
        for _, watched in sorted(self._pending.items()):
            watched.ticket.settle(watched.mark.error if watched.mark.reached else error)


def _age(watched: _Watched) -> tuple[int, int]:
    return watched.serial, watched.number


def _run(pieces: _Queue, device_index: int, reached: Reached) -> None:
    import torch

    torch.cuda.set_device(device_index)
    waiting: list[_Watched] = []
    stopping = False
    while waiting or not stopping:
        if not waiting:
            first = pieces.get()
            if first is None:
                return
            heapq.heappush(waiting, first)
        oldest = waiting[0].mark
        oldest.block()
        stopping = _drain(pieces, waiting) or stopping
        reached(oldest.serial)
        while waiting and waiting[0].serial <= oldest.serial:
            watched = heapq.heappop(waiting)
            with suppress(RuntimeError):  # the loop was closed: nobody is left to tell
                watched.loop.call_soon_threadsafe(watched.ticket.settle, watched.mark.error)
        del oldest  # an idle thread must not keep the last step's event alive


def _drain(pieces: _Queue, waiting: list[_Watched]) -> bool:
    """What was asked meanwhile; True when it is to stop."""
    stopping = False
    with suppress(queue.Empty):
        while True:
            watched = pieces.get_nowait()
            if watched is None:
                stopping = True
            else:
                heapq.heappush(waiting, watched)
    return stopping


def of_mark(event: Event) -> Mark:
    assert isinstance(event, Mark), "an event of another device"
    return event
