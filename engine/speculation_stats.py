"""What speculation did, in counts and in time: for one request inside `Usage`, for an engine in `Stats`.

A step of a sequence verifies some of its drafts and keeps a prefix of them. So two histograms, of how many
were verified and of how many were kept, hold everything that was ever asked: by position, mean accept length,
rows saved against verifying all.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec


class SpeculationStats(msgspec.Struct, frozen=True, kw_only=True):
    """Since the engine opened. Seconds saved are against decoding without drafts, and may be negative."""

    decode_steps: int = 0  # of a sequence: each gave one token and the drafts it accepted
    drafted: int = 0  # drafts made
    verified: int = 0
    accepted: int = 0
    verified_by_position: tuple[int, ...] = ()
    accepted_by_position: tuple[int, ...] = ()
    rows_saved: int = 0  # rows that verifying every draft would have added
    steps_without_drafts: int = 0  # of the engine: drafting rested, it would not have paid
    seconds_saved_estimated: float = 0.0  # tokens expected by confidence, times modelled
    seconds_saved_measured: float = 0.0  # tokens that came, times observed; against the modelled plain step
    trust: float = 1.0  # accepted drafts by those that their confidences promised

    @property
    def mean_accept_length(self) -> float:
        """Tokens per step of a sequence; 1 without speculation."""
        return 1.0 + self.accepted / self.decode_steps if self.decode_steps else 1.0


def by_position(histogram: Sequence[int]) -> tuple[int, ...]:
    """From how often a prefix of each length occurred to how often each position was in one."""
    reached = list(accumulate(reversed(histogram[1:])))
    while reached and not reached[0]:
        del reached[0]  # positions nobody ever reached
    return tuple(reversed(reached))


def prefix_tokens(histogram: Sequence[int]) -> int:
    """Drafts in all prefixes together."""
    return sum(length * times for length, times in enumerate(histogram))
