"""A device made of a script: what each piece of work costs, and which piece fails or never ends.

Most of the engine's tests run on it. Under `VirtualClockLoop` a run is a pure function of its script; under a
real loop the same script paces itself by real time, as benchmarks of overlap need. The timeline is computed
when work is enqueued (it starts when its stream is free and its waits are over, it ends `latency(label)`
later), as a real device would keep it however late the host looks; callables run when their end is due.
Rejected: running work in a task per stream, whose wake-ups would add host latency to the device's time.

Invariant: everything that is due runs in the order (end, enqueued), so streams agree with their waits.
"""

from __future__ import annotations

import heapq
import itertools
import math
from asyncio import AbstractEventLoop
from collections.abc import Callable
from enum import Enum

from .alarm import Alarm, RealTimeAlarm
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
from .poison import closed_error, poison


class Hang(Enum):
    """The type of `HANG`."""

    HANG = "hang"


HANG = Hang.HANG
"""Scripted instead of an error: the work never ends, and nothing behind it starts."""

Latency = Callable[[str], float]
Fault = Callable[[str], BaseException | Hang | None]
Observer = Callable[[str, float, float], None]
NAME = "the simulated device"


class _SimulatedEvent(Event):
    def __init__(self, due: float, catch_up: Callable[[float], None]) -> None:
        self.due, self._catch_up = due, catch_up
        self.tickets: list[Ticket] = []
        self._reached = False
        self._error: BaseException | None = None

    @property
    def reached(self) -> bool:
        if not self._reached:
            self._catch_up(self.due)
        return self._reached

    @property
    def error(self) -> BaseException | None:
        return self._error

    def reach(self, error: BaseException | None) -> None:
        if self._reached:
            return
        self._reached, self._error = True, error
        tickets, self.tickets = self.tickets, []
        for ticket in tickets:
            ticket.settle(error)


class _SimulatedStream(Stream):
    def __init__(self, name: str, device: SimulatedDevice) -> None:
        self._name, self._device = name, device
        self._free_at = -math.inf
        self._error: DeviceError | None = None

    def enqueue(self, work: Work, label: str = "") -> None:
        self._device.check_open()
        if self._error is not None:
            raise self._error
        start = max(self._free_at, self._device.now())
        fault = self._device.fault(label)
        self._free_at = math.inf if fault is HANG else start + self._device.latency(label)
        self._device.tell(self._name, label, start, self._free_at)
        self._device.schedule(self._free_at, lambda: self._run(work, label, fault))

    def record(self) -> Event:
        event = _SimulatedEvent(max(self._free_at, self._device.now()), self._device.catch_up)
        self._device.schedule_event(event, lambda: event.reach(self._error))
        return event

    def wait(self, event: Event) -> None:
        assert isinstance(event, _SimulatedEvent)
        self._free_at = max(self._free_at, event.due)
        self._device.schedule(self._free_at, lambda: self._follow(event))

    def _follow(self, event: _SimulatedEvent) -> None:
        if self._error is None and isinstance(event.error, DeviceError):
            self._error = event.error

    def _run(self, work: Work, label: str, fault: BaseException | Hang | None) -> None:
        if self._error is not None:
            return
        if isinstance(fault, BaseException):
            self._error = poison(label, fault)
            return
        try:
            work()
        except Exception as error:
            self._error = poison(label, error)


class SimulatedDevice(Device):
    """Streams whose work takes scripted time. Computes nothing itself: callables run on the loop's thread."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        *,
        latency: Latency = lambda label: 0.0,
        fault: Fault = lambda label: None,
        memory: MemoryInfo = MemoryInfo(total=1 << 30, free=1 << 30),  # noqa: B008  (frozen)
        observe: Observer = lambda label, start, end: None,
        real_time: bool = False,
    ) -> None:
        """`latency` in seconds and `fault` are asked for each piece of work, by its label, when enqueued.

        `observe(label, start, end)` sees the timeline then, in seconds on `now`'s clock (`end` is infinite
        for a hang). `real_time`: pace by `time.perf_counter` and a thread, not by the loop's timers.
        """
        self.latency, self.fault, self.observe = latency, fault, observe
        self._memory, self._real_time = memory, real_time
        self._alarm = (RealTimeAlarm if real_time else Alarm)(loop, self._advance)
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._events: set[_SimulatedEvent] = set()
        self._streams: dict[str, _SimulatedStream] = {}
        self._observer: WorkObserver | None = None
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kind="simulated", name="simulated", runs_on_enqueue=False, graphs=False, pinned_staging=False
        )

    @property
    def torch_device(self) -> str:
        return "meta"

    @property
    def compute(self) -> Stream:
        return self.stream("compute")

    def stream(self, name: str) -> Stream:
        return self._streams.setdefault(name, _SimulatedStream(name, self))

    def watch(self, event: Event, loop: AbstractEventLoop) -> Ticket:
        assert isinstance(event, _SimulatedEvent)
        ticket = Ticket(event)
        if event.reached:
            ticket.settle(event.error)
        elif self._closed:
            ticket.settle(closed_error(NAME))
        else:
            event.tickets.append(ticket)
        return ticket

    def staging(self, size: int) -> StagingBuffer:
        return HostBuffer(size)

    def capture(self, work: Work, label: str = "") -> Graph:
        raise NotImplementedError("the simulated device has no graphs")

    def memory(self) -> MemoryInfo:
        return self._memory

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._alarm.stop()
        self._due.clear()
        for event in sorted(self._events, key=lambda event: event.due):
            event.reach(closed_error(NAME))
        self._events.clear()

    # For the streams.

    def time_work(self, observer: WorkObserver) -> None:
        self._observer = observer

    def tell(self, stream: str, label: str, start: float, end: float) -> None:
        """The timeline of a piece is known when it is enqueued."""
        self.observe(label, start, end)
        if self._observer is not None and end < math.inf:
            self._observer(stream, label, round(start * 1e9), round(end * 1e9))

    def now(self) -> float:
        """Seconds on the clock of the timeline."""
        return self._alarm.now()

    def check_open(self) -> None:
        if self._closed:
            raise closed_error(NAME)

    def schedule(self, due: float, action: Callable[[], None]) -> None:
        """Runs `action` at `due`, after everything scheduled for that time before."""
        if due == math.inf:
            return
        heapq.heappush(self._due, (due, next(self._order), action))
        self._alarm.set(due)

    def schedule_event(self, event: _SimulatedEvent, action: Callable[[], None]) -> None:
        self._events.add(event)

        def reach() -> None:
            self._events.discard(event)
            action()

        self.schedule(event.due, reach)

    def catch_up(self, due: float) -> None:
        """In real time a device is done when it is done, whether or not the loop could be woken."""
        if self._real_time and due <= self.now() and not self._closed:
            self._advance()

    def _advance(self) -> None:
        now = self.now()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
        if self._due:
            self._alarm.set(self._due[0][0])
