"""How many steps streams hear of at once, so that serving them never makes the device wait.

A step of many streams costs the host Python once per stream, and once more per woken reader: at 64 streams as
long as a card takes for the step. Where the host is the longer part, text may be a few steps late and the
device may not: several steps served together wake each reader once. How many is found by trying: one more
whenever the device waited, one less after a long time in which it did not.

Where steps are long nothing is held back: there the host has time, a wait is an accident, and readers would
see their text stutter. Rejected: holding a step back only when the device waited for it. The steps after it
find the host in time again, and the device waits for every other one.

Invariant: between 1 and `MOST` steps, and no text waits for others longer than `LATEST`.
"""

from __future__ import annotations

MOST = 8
"""Steps that streams hear of at once at most: an eighth of a reader's turn is a small part of a step, and
eight of a card's shortest steps are as long as text may wait."""

LATEST = 0.005
"""Seconds that text may wait: what an event loop may lag."""

QUIET = 256
"""Steps without a wait after which one step fewer is tried; where that is too few, one in so many waits."""


class DeliveryPace:
    """Told of every step; knows how many may be told at once."""

    __slots__ = ("_quiet", "steps")

    def __init__(self) -> None:
        self.steps = 1
        self._quiet = 0  # steps since the device waited or `steps` changed

    def observe(self, device_waited: bool) -> None:
        if device_waited:
            self.steps, self._quiet = min(self.steps + 1, MOST), 0
        elif self.steps > 1:
            self._quiet += 1
            if self._quiet == QUIET:
                self.steps, self._quiet = self.steps - 1, 0

    def may_wait(self, untold: int, seconds: float) -> bool:
        """Whether so many steps, of which the newest took so many seconds, may wait for the next one."""
        return untold < self.steps and untold * seconds <= LATEST
