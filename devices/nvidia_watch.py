"""Tells event loops that points of a stream were reached: one thread that sleeps in the driver.

`cudaEventSynchronize` gives up the interpreter's lock, so a thread inside it costs the event loop nothing; on
its return it posts to the loop. Rejected: polling the event (burns the loop's time or adds latency), a thread
per ticket, and `cudaLaunchHostFunc`, whose callback would have to take the lock inside the driver's thread.
One thread per watched stream and not per device: a mark behind a long copy must not hold up a decode step.

Invariant: of the marks that are waited for, the oldest is waited for first, and all marks not younger than
the one reached are settled in the order in which they were recorded.
"""

from __future__ import annotations

import heapq
import queue
import threading
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


_Queue = queue.SimpleQueue["_Watched | None"]
Reached = Callable[[int], None]


class Watcher:
    """The tickets of one stream. Used from the loop's thread."""

    def __init__(self, name: str, device_index: int, reached: Reached) -> None:
        """`reached(serial)` is called on the watcher's thread before tickets of that mark are settled."""
        self._queue: _Queue = queue.SimpleQueue()
        self._count = 0
        self._pending: dict[int, _Watched] = {}
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
        self._queue.put(watched)
        return ticket

    def _forget(self, number: int) -> None:
        self._pending.pop(number, None)

    def stop(self, seconds: float = 0.0) -> None:
        """The thread ends when it has settled what was asked; waited for so long at most. Idempotent."""
        self._queue.put(None)
        if seconds and self._thread is not threading.current_thread():
            self._thread.join(seconds)

    def abandon(self, error: DeviceError) -> None:
        """On the loop's thread, after `stop`: the loop may not run again, so tickets are settled here."""
        for _, watched in sorted(self._pending.items()):
            watched.ticket.settle(watched.mark.error if watched.mark.reached else error)


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
