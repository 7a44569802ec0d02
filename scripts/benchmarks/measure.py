"""Times of contenders that take turns.

A machine is never equally fast twice: clocks change, neighbours come and go. Contenders measured one after
another inherit that as a difference between them; contenders that alternate, round by round, share it.
Medians, because the disturbances are one-sided.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

Times = dict[str, list[float]]


def alternate(contenders: Mapping[str, Callable[[], object]], *, rounds: int, warmups: int = 1) -> Times:
    """Seconds of each call of each contender, `rounds` calls each, in turns."""
    for _ in range(warmups):
        for call in contenders.values():
            call()
    times: Times = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            begun = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begun)
    return times


def medians(times: Times) -> dict[str, float]:
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def resident_bytes() -> int:
    """Memory of this process now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak_resident_bytes() -> int:
    """The most memory this process ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
