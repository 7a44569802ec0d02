"""Durations an operator watches, as histograms that cost an increment each and are always kept.

A trace explains one minute; these describe a month. They are fed by the actors with times they have read
anyway, and read by `Engine.stats`, from which the Prometheus collector makes its metrics, so nothing is
counted twice and the library is not needed for counting. Intervals between tokens are observed once per step,
weighted by the sequences that decoded in it: one increment instead of hundreds.

Exposed host time is the device's idle time between two steps while there was something to compute. Whether
there was, only the scheduler knows: it says `starved` when it has nothing to plan and nothing is in flight.
"""

from __future__ import annotations

from bisect import bisect_left

from .timings import Histogram, Timings

_MICRO = (0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005)
_MILLI = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05)
_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
FINE = (*_MICRO, *_MILLI, *_SECONDS[:4])
COARSE = (*_MILLI, *_SECONDS)
_NANOSECOND = 1e-9


class Observations:
    """A histogram that grows. `bounds` are upper bounds in seconds, inclusive."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, seconds: float, weight: int = 1) -> None:
        self.counts[bisect_left(self.bounds, seconds)] += weight
        self.total += seconds * weight

    def histogram(self) -> Histogram:
        return Histogram(bounds=self.bounds, counts=tuple(self.counts), total=self.total)


class Measurements:
    """One engine's histograms. Times are nanoseconds of the tracer's clock; 0: it is switched off."""

    def __init__(self) -> None:
        self.first_token, self.queue = Observations(COARSE), Observations(COARSE)
        self.end_to_end, self.inter_token = Observations(COARSE), Observations(FINE)
        self.step, self.exposed_host = Observations(FINE), Observations(FINE)
        self.loop_lag = Observations(FINE)
        self._busy_from = self._free_from = self._committed_at = 0
        self._starved = True

    def starved(self) -> None:
        """Nothing is in flight, and there is nothing to plan."""
        self._starved = True

    def launched(self, now: int) -> None:
        """A forward was enqueued."""
        if not self._busy_from:
            self._busy_from = now
            if self._free_from and not self._starved:
                self.exposed_host.add((now - self._free_from) * _NANOSECOND)
        elif not self._starved:
            self.exposed_host.add(0.0)
        self._starved = False

    def settled(self, now: int, more_enqueued: bool) -> None:
        """A step ended on the device; `more_enqueued`: the next forward is behind it already."""
        if self._busy_from:
            self.step.add((now - self._busy_from) * _NANOSECOND)
        self._free_from = now
        self._busy_from = now if more_enqueued else 0

    def committed(self, now: int, decoding: int) -> None:
        """So many decoding sequences got tokens."""
        if self._committed_at and decoding:
            self.inter_token.add((now - self._committed_at) * _NANOSECOND, decoding)
        self._committed_at = now

    def ended(self, end_to_end: float, queue: float, first_token: float | None) -> None:
        """A request ended well; seconds since its arrival."""
        self.end_to_end.add(end_to_end)
        self.queue.add(queue)
        if first_token is not None:
            self.first_token.add(first_token)

    def lagged(self, nanoseconds: int) -> None:
        self.loop_lag.add(nanoseconds * _NANOSECOND)

    def timings(self) -> Timings:
        return Timings(
            first_token=self.first_token.histogram(),
            inter_token=self.inter_token.histogram(),
            end_to_end=self.end_to_end.histogram(),
            queue=self.queue.histogram(),
            step=self.step.histogram(),
            exposed_host=self.exposed_host.histogram(),
            loop_lag=self.loop_lag.histogram(),
        )
