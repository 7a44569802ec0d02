"""How late the event loop runs what is due: the delay that every stream, timer and message suffers.

A timer that notes how late it fired sees everything that blocks the loop, ours and the embedder's. It is
armed only while steps are made: an idle engine wakes nobody. Loops whose timers count milliseconds (uvloop)
are precise to one.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle

from .recorder import Recorder

SECONDS_BETWEEN = 0.1
SECONDS_BETWEEN_WHILE_WRITING = 0.005
_NANOSECONDS = 1e9


class LoopLag:
    """Records `event_loop.lag` spans, from when the timer was due to when it fired."""

    def __init__(self, loop: AbstractEventLoop, recorder: Recorder) -> None:
        self._loop, self._recorder = loop, recorder
        self._timer: TimerHandle | None = None
        self._due = 0
        self._needed = False
        self._closed = False
        self.interval = SECONDS_BETWEEN

    def arm(self) -> None:
        """A step was made: watch the loop for another while."""
        self._needed = True
        if self._timer is None and not self._closed:
            self._schedule()

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fired(self) -> None:
        self._timer = None
        now = max(self._recorder.clock(), self._due)
        self._recorder.record(("event_loop.lag", self._due, now, -1, 0))
        self._recorder.measurements.lagged(now - self._due)
        if self._needed:
            self._needed = False
            self._schedule()

    def _schedule(self) -> None:
        self._due = self._recorder.clock() + round(self.interval * _NANOSECONDS)
        self._timer = self._loop.call_later(self.interval, self._fired)
