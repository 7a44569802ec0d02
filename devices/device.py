"""The contract of a device: ordered streams of work, events that mark a point in one, tickets to await them.

The host must enqueue work and go on; something must later tell the event loop that a point was reached,
without a thread of ours blocking and without a poll. A CUDA device, a worker thread, a child process and a
simulation all fit this shape, so the runner and the actors are written once. Rejected: `await run(fn)` on an
executor, which can neither queue a second step behind the first nor overlap its launch.

Invariants, checked for every device by `tests/device/conformance`:
* Work on one stream runs in the order of `enqueue`, never concurrently with itself.
* `enqueue` never waits for the device. Its callable may run at once (CUDA: it launches kernels) or later on
  another thread (CPU) or at a virtual time (simulated): it must own everything that it reads.
* The first error poisons the stream: later work is skipped, every event recorded after it reports that error.
* `watch` calls back on the loop's thread, exactly once, in the order in which events of one stream complete.

Devices import nothing of ours and know neither requests nor steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from asyncio import AbstractEventLoop, Future, get_running_loop
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Work = Callable[[], None]
Watcher = Callable[[BaseException | None], None]
WorkObserver = Callable[[str, str, int, int], None]
"""Hears of a piece of work: (stream, label, begin, end), nanoseconds of `time.perf_counter_ns` (of the loop's
time where that is virtual). Called on any thread, in the order of each stream, once both are known."""


class DeviceError(RuntimeError):
    """Work on a device failed; the stream it ran on is unusable. The original error is `__cause__`."""


class OutOfMemoryError(DeviceError):
    """The device has no room for an allocation."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a device can do, asked once when an engine opens."""

    kind: str  # "cpu", "nvidia", "ascend", "simulated"
    name: str
    runs_on_enqueue: bool  # True: the callable runs inside `enqueue` and only launches (CUDA)
    graphs: bool  # `capture` works
    pinned_staging: bool  # staging buffers are page-locked, so copies from them do not block
    measures_memory: bool = False  # `bytes_needed` works
    architecture: tuple[int, int] = (0, 0)  # CUDA compute capability


class MemoryInfo(msgspec.Struct, frozen=True):
    """Bytes of device memory."""

    total: int
    free: int  # what an allocation can have
    kept: int = 0  # of it, what the allocator of this process holds already


class Event(ABC):
    """A point in a stream. Recorded by `Stream.record`."""

    @property
    @abstractmethod
    def reached(self) -> bool:
        """Whether all work enqueued before it has ended. Never waits."""

    @property
    @abstractmethod
    def error(self) -> BaseException | None:
        """The error of the stream up to this point, once reached."""


class Ticket:
    """An event as the event loop sees it: awaitable, cancellable, settled once on the loop's thread.

    Not thread-safe: a device settles it through `loop.call_soon_threadsafe`. A ticket nobody awaits makes no
    noise; an error it carries is the device's error and reaches everybody through the next launch.

    That call comes from a thread, which needs the interpreter's lock: a loop busy with short callbacks
    drops it too shortly for anybody else to take it, for milliseconds. So a busy loop may also `look`.
    """

    __slots__ = ("_error", "_event", "_future", "_settled", "_watchers")

    def __init__(self, event: Event | None = None) -> None:
        """Without an event there is nothing to look at: it is settled by whoever made it, and only then."""
        self._event = event
        self._settled = False
        self._error: BaseException | None = None
        self._future: Future[None] | None = None
        self._watchers: list[Watcher] = []

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def reached(self) -> bool:
        """Whether the event was reached, though the loop may not have heard of it yet. Never waits."""
        return self._settled or (self._event is not None and self._event.reached)

    def look(self) -> bool:
        """Settles it, on the loop's thread, if the event was reached; whether that was so.

        For the oldest ticket of its stream: a younger one must not overtake it.
        """
        if self._settled or self._event is None or not self._event.reached:
            return False
        self.settle(self._event.error)
        return True

    @property
    def error(self) -> BaseException | None:
        return self._error

    def on_settled(self, watcher: Watcher) -> None:
        """Calls `watcher(error or None)` when settled; at once if it is already."""
        if self._settled:
            watcher(self._error)
        else:
            self._watchers.append(watcher)

    def settle(self, error: BaseException | None = None) -> None:
        """For devices: the event was reached. A second call is ignored (a device may close late)."""
        if self._settled:
            return
        self._settled, self._error = True, error
        watchers, self._watchers = self._watchers, []
        for watcher in watchers:
            watcher(error)

    def __await__(self) -> Generator[Any, None, None]:
        if not self._settled:
            future: Future[None] = get_running_loop().create_future()
            self.on_settled(lambda _: None if future.done() else future.set_result(None))
            yield from future.__await__()
        if self._error is not None:
            raise self._error


class Stream(ABC):
    """One ordered queue of work."""

    @abstractmethod
    def enqueue(self, work: Work, label: str = "") -> None:
        """Appends work; `label` names it in traces and errors. Raises the poison of a failed stream."""

    @abstractmethod
    def record(self) -> Event:
        """Marks the present end of the queue."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Holds later work of this stream until an event of another stream is reached (on the device)."""


class Graph(ABC):
    """Captured work that replays as one launch on fixed buffers."""

    @abstractmethod
    def replay(self) -> None:
        """Called inside enqueued work of the stream it was captured on."""


class StagingBuffer(ABC):
    """Host memory the device copies from or to without waiting; page-locked where that exists.

    A ring of these separates steps: a buffer is written again only after the event of the step that used it.
    """

    @property
    @abstractmethod
    def host(self) -> npt.NDArray[np.uint8]:
        """The bytes, writable, uint8 [size]."""


class Device(ABC):
    """One place where arithmetic runs. Opened and used from one event loop."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities: ...

    @property
    @abstractmethod
    def torch_device(self) -> str:
        """What torch calls it ("cpu", "cuda:0"); "meta" for a device that computes with numpy only."""

    @property
    @abstractmethod
    def compute(self) -> Stream:
        """The stream of everything that touches caches and sequence state."""

    @abstractmethod
    def stream(self, name: str) -> Stream:
        """A further ordered queue (copies, communication), made on first use."""

    @abstractmethod
    def watch(self, event: Event, loop: AbstractEventLoop) -> Ticket:
        """A ticket settled on `loop` when the event is reached."""

    @abstractmethod
    def staging(self, size: int) -> StagingBuffer: ...

    def placing(self) -> AbstractContextManager[None]:
        """Where a thread loads weights, allocates and tries things out, while an engine opens.

        What it computes there comes before everything enqueued later on `compute`, and may wait for the
        device. No room is `OutOfMemoryError` where the device can tell.
        """
        return nullcontext()

    @abstractmethod
    def capture(self, work: Work, label: str = "") -> Graph:
        """Runs `work` once to warm up, then records its launches, for `compute`; while an engine opens.

        Raises NotImplementedError where capabilities deny graphs, `DeviceError` for work that cannot be
        captured and `OutOfMemoryError` for lack of room, both naming `label`. Streams stay usable.
        """

    @abstractmethod
    def memory(self) -> MemoryInfo: ...

    def bytes_needed(self, work: Work) -> int:
        """Runs `work` in `placing`, and returns the most bytes it held at a time; while an engine opens.

        Raises NotImplementedError where capabilities deny it.
        """
        raise NotImplementedError("this device does not measure memory")

    def time_work(self, observer: WorkObserver) -> None:
        """From now on tells `observer` when each piece ran on the device, never by waiting for it.

        A device that cannot tell keeps silent; whoever reads its traces then infers.
        """
        return

    @abstractmethod
    def close(self) -> None:
        """Refuses work, lets the running piece end, settles all tickets, frees threads. Idempotent."""
