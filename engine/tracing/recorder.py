"""The recorder every actor holds: a bounded ring of tuples, always on, so that the past can be asked for.

What was slow is known only afterwards, so the last steps are always remembered. A record is a tuple of
strings and integers appended to a bounded deque: one append, atomic under the interpreter's lock, safe from
every thread, no lock of ours, and nothing the garbage collector has to follow. Rejected: arrays indexed by a
shared counter (a lock, or records torn between threads) and an object per span (three times the cost).

While a file is written, the pump takes records out of the queue and keeps them in `_kept`; otherwise the
queue itself is the ring. Either way `snapshot` gives the newest `capacity` records.

Records, times in nanoseconds of the recorder's clock:

    (SpanName, begin, end, step or -1, size)              a span on its actor's track
    (DEVICE_WORK, begin, end, stream, label)              a piece of device work, timed by the device
    (COUNTED, time, one tuple of values per group of COUNTERS)
    (OPENED, time, key, label or None, prompt tokens, followed)   a sequence's life
    (ADMITTED, time, key, cached tokens, resumed)
    (STEPPED, time, step, BatchLayout, counts)            a commit reached the output actor
    (DELIVERED, time, key, tokens)                        its caller took a delta
    (ENDED, time, key, reason, tokens)
    (NOTE, time, text)
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from stepahead.engine.measurements import Measurements
from stepahead.engine.model.runner import BatchLayout, Int32s

from .clock import TraceClock
from .vocabulary import ADMITTED, DELIVERED, DEVICE_WORK, ENDED, NOTE, OPENED, STEPPED, SpanName

Record = tuple[Any, ...]

RECORDS_PER_STEP = 24
"""What one lap records, roughly: the ring is sized in steps."""


class SpanFunction(Protocol):
    def __call__(self, name: SpanName, begin: int, step: int = -1, size: int = 0, /) -> int:
        """Records a span that ends now, and returns now: where the next one often begins."""


class Recorder:
    """`clock`, `span` and `record`, each one call deep. Shared by the actors of one engine."""

    __slots__ = (
        "_kept",
        "_queue",
        "capacity",
        "clock",
        "count",
        "enabled",
        "measurements",
        "record",
        "span",
        "wall_at_zero",
    )

    def __init__(self, clock: TraceClock, steps: int) -> None:
        """Remembers about the last `steps` steps."""
        self.capacity = max(steps, 1) * RECORDS_PER_STEP
        self._queue: deque[Record] = deque(maxlen=self.capacity)
        self._kept: deque[Record] = deque(maxlen=self.capacity)
        self.enabled = True
        self.measurements = Measurements()
        self.wall_at_zero = clock.wall_at_zero
        self.clock: Callable[[], int] = clock.now
        self.record: Callable[[Record], object] = self._queue.append
        self.span: SpanFunction = _span_function(self._queue.append, clock.now)
        self.count: Callable[[BatchLayout, int], int] = _ignore  # set by who can read the engine's counters

    def note(self, text: str) -> None:
        """Something that happened once and explains what follows."""
        self.record((NOTE, self.clock(), text))

    def opened(self, key: int, label: str | None, prompt_tokens: int, followed: bool) -> None:
        """A sequence was submitted. `followed`: its caller's file shows it step by step."""
        self.record((OPENED, self.clock(), key, label, prompt_tokens, followed))

    def admitted(self, key: int, cached_tokens: int, resumed: bool) -> None:
        self.record((ADMITTED, self.clock(), key, cached_tokens, resumed))

    def stepped(self, now: int, step: int, layout: BatchLayout, counts: Int32s) -> None:
        """The streams learn of a commit; the arrays are kept, not copied."""
        self.record((STEPPED, now, step, layout, counts))

    def delivered(self, key: int, tokens: int) -> None:
        self.record((DELIVERED, self.clock(), key, tokens))

    def ended(self, key: int, reason: str, tokens: int) -> None:
        self.record((ENDED, self.clock(), key, reason, tokens))

    def device_work(self, stream: str, label: str, begin: int, end: int) -> None:
        """For devices, from any thread: a piece of work that has ended, or whose end is known."""
        self.record((DEVICE_WORK, begin, end, stream, label))

    def snapshot(self) -> list[Record]:
        """The newest records, in the order they were made. A copy, at memory speed."""
        records = [*_copied(self._kept), *_copied(self._queue)]
        return records[-self.capacity :]

    @property
    def pending(self) -> int:
        """Records not yet taken by `take`; at `capacity`, some may have been lost to it."""
        return len(self._queue)

    def take(self, most: int) -> list[Record]:
        """For the pump: moves up to `most` records from the queue to the ring, and returns them."""
        taken = [self._queue.popleft() for _ in range(min(most, len(self._queue)))]
        self._kept.extend(taken)
        return taken


def _span_function(append: Callable[[Record], None], clock: Callable[[], int]) -> SpanFunction:
    """A closure: half the cost of a method, which would look up both on every call."""

    def span(name: SpanName, begin: int, step: int = -1, size: int = 0, /) -> int:
        now = clock()
        append((name, begin, now, step, size))
        return now

    return span


def _copied(records: deque[Record]) -> list[Record]:
    """Another thread may append while we copy, which an iterator refuses; then we copy again."""
    while True:
        try:
            return list(records)
        except RuntimeError:
            continue


class SilentRecorder(Recorder):
    """Tracing switched off: the calls remain and do nothing. The clock goes on: steps are timed by it."""

    __slots__ = ()

    def __init__(self, clock: TraceClock) -> None:
        super().__init__(clock, 1)
        self.enabled = False
        self.record = self.span = self.count = _ignore


def _ignore(*_: object) -> int:
    return 0


SILENT: Recorder = SilentRecorder(TraceClock(time.perf_counter_ns, None))
"""Held by actors until somebody gives them a recorder of their engine."""
