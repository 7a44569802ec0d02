"""What all streams of an engine consumed since it opened.

Every step serves every stream, so what a step adds to a stream is counted there, once, and nothing is added
up meanwhile: totals are asked for now and then, and are then those of the sequences that ended plus those of
the sequences that run. Rejected: totals that each row of each step adds to, which doubled the counting.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepahead.engine.speculation_stats import prefix_tokens

from .live_sequence import LiveSequence


class OutputTotals:
    """Sums over sequences; the counters of the first line are kept by the output actor as they happen."""

    def __init__(self) -> None:
        self.steps = self.prompt_tokens = self.cached_tokens = self.preemptions = 0
        self.finished = self.aborted = self.failed = self.coalesced_deltas = 0
        self.output_tokens = 0
        self.accept_lengths: list[int] = []  # how often so many drafts of a sequence's step were accepted
        self.verify_lengths: list[int] = []

    @property
    def accepted_tokens(self) -> int:
        return prefix_tokens(self.accept_lengths)

    @property
    def drafted_tokens(self) -> int:
        return prefix_tokens(self.verify_lengths)

    def add(self, live: LiveSequence) -> None:
        """What one sequence has consumed up to now."""
        self.output_tokens += live.output
        _add_up(self.accept_lengths, live.accept_lengths)
        _add_up(self.verify_lengths, live.verify_lengths)

    def with_those_that_run(self, running: Iterable[LiveSequence]) -> OutputTotals:
        """A copy that counts these, too."""
        totals = OutputTotals()
        totals.__dict__.update(self.__dict__)
        totals.accept_lengths, totals.verify_lengths = list(self.accept_lengths), list(self.verify_lengths)
        for live in running:
            totals.add(live)
        return totals


def _add_up(histogram: list[int], others: Sequence[int]) -> None:
    histogram.extend([0] * (len(others) - len(histogram)))
    for length, times in enumerate(others):
        histogram[length] += times
