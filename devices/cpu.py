"""The host's processor as a device: a thread per stream, so that the event loop goes on while torch computes.

Nothing is spawned but the thread, and it is the default. Torch gets one thread less than there are cores: the
loop needs one, and a matrix product whose second thread is descheduled waits for it at every barrier (5 to
12 times slower). Rejected: an executor of the loop, whose pool can neither keep an order nor mark a point.

Invariant: a marker's watchers are posted to the loop by the stream's own thread in stream order.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable
from contextlib import suppress

from .buffers import HostBuffer
from .device import (
    Capabilities,
    Device,
    DeviceError,
    Event,
    Graph,
    MemoryInfo,
    StagingBuffer,
    Stream,
    Ticket,
    Work,
    WorkObserver,
)
from .host_memory import host_memory
from .poison import closed_error, poison

NAME = "the CPU device"
CLOSE_SECONDS = 1.0
"""How long closing waits for the running piece. A longer one ends by itself, and nobody looks at it again."""


def default_threads() -> int:
    """Cores this process may use, less the one of the event loop; at least 1."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, available - 1)


class _CpuEvent(Event):
    """Reached on the stream's thread, watched from the loop's; the lock orders the two."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flag = threading.Event()
        self._error: BaseException | None = None
        self._watchers: list[tuple[AbstractEventLoop, Ticket]] = []

    @property
    def reached(self) -> bool:
        return self._flag.is_set()

    @property
    def error(self) -> BaseException | None:
        return self._error

    def reach(self, error: BaseException | None) -> None:
        with self._lock:
            if self._flag.is_set():
                return
            self._error = error
            self._flag.set()
            watchers, self._watchers = self._watchers, []
        for loop, ticket in watchers:
            _settle_on(loop, ticket, error)

    def watch(self, loop: AbstractEventLoop) -> Ticket:
        ticket = Ticket(self)
        with self._lock:
            if not self._flag.is_set():
                self._watchers.append((loop, ticket))
                return ticket
        _settle_on(loop, ticket, self._error)  # behind what earlier events have posted
        return ticket

    def abandon(self, error: BaseException) -> None:
        """Closing, on the loop's thread: tickets are settled at once, since the loop may not run again."""
        with self._lock:
            watchers, self._watchers = self._watchers, []
        for _, ticket in watchers:
            ticket.settle(error)
        self.reach(error)

    def block(self) -> None:
        self._flag.wait()


def _settle_on(loop: AbstractEventLoop, ticket: Ticket, error: BaseException | None) -> None:
    with suppress(RuntimeError):  # the loop was closed: nobody is left to tell
        loop.call_soon_threadsafe(ticket.settle, error)


class _CpuStream(Stream):
    """The order of a stream and its poison; where its pieces run is decided by `submit`."""

    def __init__(self, name: str, submit: Callable[[Callable[[], None]], None]) -> None:
        self._name, self._submit = name, submit
        self.observer: WorkObserver | None = None
        self._error: DeviceError | None = None
        self._closed = False
        self._pending: set[_CpuEvent] = set()

    def enqueue(self, work: Work, label: str = "") -> None:
        if self._error is not None:
            raise self._error
        self._submit(lambda: self._run(work, label))

    def record(self) -> Event:
        event = _CpuEvent()
        self._pending.add(event)
        self._submit(lambda: self._mark(event))
        if self._closed:
            event.abandon(self._error or closed_error(NAME))
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, _CpuEvent)
        self._submit(lambda: self._follow(event))

    def close(self) -> None:
        """On the loop's thread: nothing further runs, every event is reached."""
        self._closed = True
        self._error = self._error or closed_error(NAME)
        for event in list(self._pending):
            event.abandon(self._error)
        self._pending.clear()

    def _run(self, work: Work, label: str) -> None:
        if self._error is not None:
            return
        begin = time.perf_counter_ns()
        try:
            work()
        except BaseException as error:
            self._error = self._error or poison(label, error)
            if threading.current_thread() is threading.main_thread() and not isinstance(error, Exception):
                raise  # an interrupt of the user's program, which an inline device runs inside
        if self.observer is not None:
            self.observer(self._name, label, begin, time.perf_counter_ns())

    def _mark(self, event: _CpuEvent) -> None:
        event.reach(self._error)
        self._pending.discard(event)

    def _follow(self, event: _CpuEvent) -> None:
        event.block()
        if isinstance(event.error, DeviceError):
            self._error = self._error or event.error


Queue = queue.SimpleQueue[Callable[[], None] | None]


class _Worker:
    """One thread that runs what its queue holds. Holds no reference to the device, so a lost one ends it."""

    def __init__(self, name: str, threads: int) -> None:
        self.queue: Queue = queue.SimpleQueue()
        self.thread = threading.Thread(
            target=_work, args=(self.queue, threads), name=f"stepahead-cpu-{name}", daemon=True
        )
        self.thread.start()

    def stop(self) -> None:
        """Lets the running piece end, for a bounded time. Idempotent."""
        self.queue.put(None)
        if self.thread is not threading.current_thread():
            self.thread.join(CLOSE_SECONDS)


def _work(pieces: Queue, threads: int) -> None:
    import torch  # an embedder that never opens a CPU device never pays for it

    torch.set_num_threads(threads)
    while (piece := pieces.get()) is not None:
        piece()
        piece = None  # an idle thread must not keep the last step's arrays alive


class CpuDevice(Device):
    """The host's processor. `inline` runs work inside `enqueue`, for tests and for a process of its own."""

    def __init__(self, threads: int | None = None, *, inline: bool = False) -> None:
        """`threads` for torch inside each stream; None: one less than the cores. Ignored when inline."""
        self._threads = default_threads() if threads is None else threads
        self._inline = inline
        self._streams: dict[str, _CpuStream] = {}
        self._observer: WorkObserver | None = None
        self._workers: list[_Worker] = []
        self._closed = False
        self._finalizer = weakref.finalize(self, _stop, self._workers)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="cpu",
            name=f"cpu ({'inline' if self._inline else f'{self._threads} threads'})",
            runs_on_enqueue=self._inline,
            graphs=False,
            pinned_staging=False,
        )

    @property
    def torch_device(self) -> str:
        return "cpu"

    @property
    def compute(self) -> Stream:
        return self.stream("compute")

    def stream(self, name: str) -> Stream:
        if name not in self._streams:
            self._streams[name] = self._new_stream(name)
            self._streams[name].observer = self._observer
        return self._streams[name]

    def _new_stream(self, name: str) -> _CpuStream:
        if self._closed:
            raise closed_error(NAME)
        if self._inline:
            return _CpuStream(name, lambda piece: piece())
        worker = _Worker(name, self._threads)
        self._workers.append(worker)
        return _CpuStream(name, worker.queue.put)

    def watch(self, event: Event, loop: AbstractEventLoop) -> Ticket:
        assert isinstance(event, _CpuEvent)
        return event.watch(loop)

    def staging(self, size: int) -> StagingBuffer:
        return HostBuffer(size)

    def capture(self, work: Work, label: str = "") -> Graph:
        raise NotImplementedError("a CPU has no graphs")

    def memory(self) -> MemoryInfo:
        return host_memory()

    def time_work(self, observer: WorkObserver) -> None:
        self._observer = observer
        for stream in self._streams.values():
            stream.observer = observer

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for stream in self._streams.values():
            stream.close()
        self._finalizer()


def _stop(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.stop()
