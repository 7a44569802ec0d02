"""An ordered queue of a CUDA device: work runs inside `enqueue` and only launches.

**The guard.** One `.item()` inside a step makes the host wait for the device and the device for the host,
silently. While a piece is launched torch's synchronisation debug mode turns such a call into an error, which
then names the piece. The mode is the process's and not the thread's, so it is set around each piece only and
put back after; code of another thread that synchronises through torch in that window fails likewise, which is
why a device can be opened without the guard.

Invariant: the first error poisons the stream; a mark recorded after it reports it.
"""

from __future__ import annotations

import threading
import time
from asyncio import AbstractEventLoop
from typing import TYPE_CHECKING

from .device import DeviceError, Event, Stream, Ticket, Work, WorkObserver
from .nvidia_clock import StreamClock
from .nvidia_errors import launch_error
from .nvidia_events import Mark
from .nvidia_watch import Watcher, of_mark
from .poison import closed_error

if TYPE_CHECKING:
    import torch

NAME = "the CUDA device"
_RAISE = 2
"""Of torch's synchronisation debug modes: raise."""

_SPARE: dict[tuple[int, int], list[torch.cuda.Stream]] = {}
"""Streams whose device was closed, by card and priority, to be used again. The matrix library keeps a
workspace for every stream it has seen until the process ends, and every engine would leave one behind."""


class NvidiaStream(Stream):
    """One CUDA stream with its marks, its watcher and its clock."""

    def __init__(self, name: str, index: int, *, guard: bool, high_priority: bool = False) -> None:
        import torch

        self._name, self._index, self._guard = name, index, guard
        self._kind = index, -1 if high_priority else 0
        spare = _SPARE.get(self._kind)
        self.cuda = spare.pop() if spare else torch.cuda.Stream(index, priority=self._kind[1])
        self._library = torch.cuda
        self._normal = torch.cuda.get_sync_debug_mode()
        self._serial = 0
        self._error: DeviceError | None = None
        self._watcher: Watcher | None = None
        self._clock: StreamClock | None = None

    def enqueue(self, work: Work, label: str = "") -> None:
        if self._error is not None:
            raise self._error
        clock = self._clock
        try:
            with self.cuda:  # a tenth of what `torch.cuda.stream` takes the host
                launched = time.perf_counter_ns()
                begin = None if clock is None else clock.mark()
                self.launch(work)
                if clock is not None and begin is not None:
                    clock.ended(label, self._serial, launched, begin)
        except BaseException as error:
            self._error = launch_error(label, error)
            if threading.current_thread() is threading.main_thread() and not isinstance(error, Exception):
                raise  # an interrupt of the user's program, which the work runs inside

    def launch(self, work: Work) -> None:
        """Runs work that must not wait, in the caller's context."""
        if not self._guard:
            work()
            return
        self._library.set_sync_debug_mode(_RAISE)
        try:
            work()
        finally:
            self._library.set_sync_debug_mode(self._normal)

    def record(self) -> Event:
        cuda, serial = self._library.Event(blocking=True), self._serial
        self._serial += 1
        try:
            cuda.record(self.cuda)
        except Exception as error:  # the card has failed since the last launch
            self._error = self._error or launch_error("record", error)
            cuda = self._library.Event()  # never recorded, so reached
        return Mark(self._name, serial, cuda, self._error)

    def wait(self, event: Event) -> None:
        mark = of_mark(event)
        if isinstance(mark.error, DeviceError):
            self._error = self._error or mark.error
        self.cuda.wait_event(mark.cuda)

    def watch(self, mark: Mark, loop: AbstractEventLoop) -> Ticket:
        if self._watcher is None:
            self._watcher = Watcher(self._name, self._index, self._reached)
        return self._watcher.watch(mark, loop)

    def time_work(self, observer: WorkObserver) -> None:
        self._clock = StreamClock(self._name, observer, self.cuda)

    def _reached(self, serial: int) -> None:
        """On the watcher's thread or the loop's, which must survive a card that answers no more questions."""
        try:
            if self._clock is not None:
                self._clock.tell(serial)
        except RuntimeError:
            self._clock = None

    def close(self, seconds: float) -> None:
        """Refuses work, waits for what runs so long at most, settles all tickets. On the loop's thread."""
        if self._error is None:
            _SPARE.setdefault(self._kind, []).append(
                self.cuda
            )  # who gets it next runs behind what still runs
        self._error = self._error or closed_error(NAME)
        if self._watcher is not None:
            self._watcher.stop(seconds)
            self._watcher.abandon(self._error)
            self._watcher = None

    def stop(self) -> None:
        """Lets the watcher's thread end when it has settled what was asked."""
        if self._watcher is not None:
            self._watcher.stop()
