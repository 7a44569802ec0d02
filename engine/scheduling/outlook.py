"""How many blocks the running sequences will probably need at once before they end.

Admitting whatever fits now fills the pool with sequences that push each other out as they grow: with random
lengths and pools for an eighth to a half of the slots, prompts were computed five to six times over. So
newcomers leave room for a forecast (then it was 1.05 times, in 3 to 17 % more steps). A sequence is expected
to go on for as long as recent ones lasted, or until its cap. Those expected to end sooner free their blocks
for those that go on; the peak over all those moments is what must fit. Rejected: reserving every cap (most
requests name none, so the cap is the context), and a fixed share of free blocks (right for one workload).

Invariant: a forecast delays admissions and never forbids one: with nobody running it asks for at most what
validation promised that a sequence alone can have.
"""

from __future__ import annotations

import numpy as np

from .ledger import FREE, LEAVING, Ledger

_MEMORY = 32
"""Ended sequences that the expected length mostly rests on."""


class Outlook:
    """Learns how long sequences last; forecasts the peak of blocks."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._ended = 0
        self.expected_output = 0.0  # tokens that a sequence is expected to go on

    def ended(self, output: int) -> None:
        """A sequence ended, however, after so many tokens."""
        self._ended = min(self._ended + 1, _MEMORY)
        self.expected_output += (output - self.expected_output) / self._ended

    def preempted(self) -> None:
        """The blocks ran out: what runs lasts at least as long as it has lasted on average."""
        output = self._ledger.output[self._running()]
        if output.size:
            self.expected_output = max(self.expected_output, float(output.mean()))

    def headroom(self, prefill: int, remaining_output: int) -> int:
        """Blocks a newcomer will probably need behind its prompt and lookahead, within its cap."""
        limits = self._ledger.limits
        start = prefill + 2 * limits.width
        growth = int(min(remaining_output, self.expected_output))
        return limits.blocks(start + growth) - limits.blocks(start)

    def future_blocks(self) -> int:
        """Blocks that running sequences will probably need at once beyond those they hold."""
        ledger, limits = self._ledger, self._ledger.limits
        running = self._running()
        if not running.size:
            return 0
        held = ledger.block_count[running] * limits.block_tokens
        used = np.maximum(held, ledger.prefill_end[running] + 2 * limits.width)
        left = np.minimum(ledger.max_output[running] - ledger.output[running], self.expected_output)
        longest_first = np.argsort(-left)
        alive = np.arange(1, running.size + 1)
        peak = (np.cumsum(used[longest_first]) + alive * left[longest_first]).max()
        return limits.blocks(int(peak) - int(held.sum()))

    def _running(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        phase = self._ledger.phase
        return np.flatnonzero((phase != FREE) & (phase != LEAVING))
