"""How long things took, as an operator reads it: histograms with fixed buckets, frozen at one moment."""

from __future__ import annotations

import itertools

import msgspec


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Durations in seconds, sorted into buckets."""

    bounds: tuple[float, ...]  # upper bounds, inclusive
    counts: tuple[int, ...]  # one more than bounds: the last bucket has none
    total: float  # seconds, all together

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[float, int]]:
        """(bound, observations up to it)."""
        return list(zip(self.bounds, itertools.accumulate(self.counts), strict=False))

    def quantile(self, share: float) -> float:
        """The bound of the bucket that holds the quantile: at most one bucket too large. 0 when empty."""
        wanted = share * self.count
        reached = ((bound, seen) for bound, seen in self.cumulative() if seen >= wanted)
        return next(reached, (float("inf"), 0))[0] if self.count else 0.0


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """How long things took since the engine opened. With `trace_steps` 0, only those of whole requests."""

    first_token: Histogram  # from a request's arrival
    inter_token: Histogram  # between the steps that gave a sequence tokens
    end_to_end: Histogram
    queue: Histogram  # from arrival to admission
    step: Histogram  # on the device
    exposed_host: Histogram  # the device waited although there was something to compute
    loop_lag: Histogram  # how late the event loop ran what was due
