"""One clock for everything in a trace, anchored to wall time so that other tools' events can join.

`perf_counter_ns` is monotonic, counts nanoseconds and, where it is CLOCK_MONOTONIC (Linux), reads the same in
every thread and every process of the machine. A loop with a clock of its own (virtual time in tests) is asked
instead: then a trace is a pure function of the schedule, and has no wall time.
"""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop
from collections.abc import Callable

import msgspec

NANOSECONDS = 1_000_000_000
_TRIES = 5


class TraceClock(msgspec.Struct, frozen=True):
    """Nanoseconds on one monotonic clock, and the wall time (unix, ns) at its zero, where there is one."""

    now: Callable[[], int]
    wall_at_zero: int | None


def real_clock() -> TraceClock:
    """The machine's clock, with the tightest of a few readings as its anchor (some 100 ns)."""
    readings = []
    for _ in range(_TRIES):
        before = time.perf_counter_ns()
        wall = time.time_ns()
        after = time.perf_counter_ns()
        readings.append((after - before, wall - (before + after) // 2))
    return TraceClock(time.perf_counter_ns, min(readings)[1])


def loop_clock(loop: AbstractEventLoop) -> TraceClock:
    """The loop's own time, for loops whose time is not the machine's."""
    return TraceClock(lambda: round(loop.time() * NANOSECONDS), None)
