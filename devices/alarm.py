"""What wakes a simulated device when the next piece of work is due."""

from __future__ import annotations

import math
import threading
import time
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable


class Alarm:
    """Wakes a device at a time of the loop's own clock: exact under a virtual clock."""

    def __init__(self, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._loop, self._wake = loop, wake
        self._timer: TimerHandle | None = None
        self._due = math.inf

    def now(self) -> float:
        return self._loop.time()

    def set(self, due: float) -> None:
        """Asks to be woken at `due`; the earliest of several wishes counts, the others are repeated then."""
        if due >= self._due:
            return
        self.stop()
        self._due = due
        self._timer = self._loop.call_at(due, self._ring)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = None, math.inf

    def _ring(self) -> None:
        self.stop()
        self._wake()


class RealTimeAlarm(Alarm):
    """The same in real time from a thread, to some 50 us: timers of event loops are good to 1 ms only."""

    def __init__(self, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        super().__init__(loop, wake)
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._wait, name="stepahead-alarm", daemon=True)
        self._thread.start()

    def now(self) -> float:
        return time.perf_counter()

    def set(self, due: float) -> None:
        with self._changed:
            if due < self._due:
                self._due = due
                self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def _wait(self) -> None:
        with self._changed:
            while not self._ended:
                left = self._due - time.perf_counter()
                if left > 0:
                    self._changed.wait(None if left == math.inf else left)
                    continue
                self._due = math.inf
                try:
                    self._loop.call_soon_threadsafe(self._wake)
                except RuntimeError:  # the loop was closed first: nobody is left to wake
                    return
