"""For how many more steps nothing can happen to a small batch.

Whether somebody needs a block, a kept state, or no further token is a handful of comparisons; with few
sequences they cost as much as the rest of a step and are false a hundred times in a row. Every counter they
look at moves by at most K a plan, so one look says how many plans can skip them. With many sequences somebody
always crosses a boundary soon and looking ahead is wasted, so it is left out.

Invariant: within the horizon every skipped comparison would have been false.
"""

from __future__ import annotations

from stepahead.engine.model.runner import Int32s

from .ledger import Ledger
from .rows import StepRows
from .window_saves import WindowSaves

MOST_ROWS = 32
"""Rows of a step beyond which a boundary is expected within four steps of 128-token blocks."""


class Horizon:
    """The last step up to which the same members may skip their comparisons, whatever they verify."""

    def __init__(self, ledger: Ledger, saves: WindowSaves) -> None:
        self._ledger, self._saves = ledger, saves
        self._slots: Int32s | None = None
        self._last_step = -1

    def covers(self, slots: Int32s, step: int) -> bool:
        """Whether planning this step may skip, and committing it can fill no block.

        By number, not by count: a step that was planned the long way moved the counters as well.
        """
        return slots is self._slots and step <= self._last_step

    def look(self, rows: StepRows, step: int) -> None:
        """Looks ahead from a plan that needed nothing: step `step`, about to be emitted."""
        self._slots = None
        if rows.decode.rows > MOST_ROWS:
            return
        ledger, at, first = self._ledger, rows.decode_rows, rows.decode_first
        width, block = ledger.limits.width, ledger.limits.block_tokens
        # an uncommitted step counts with all K tokens it may give, so that commits only lower these bounds
        slack = min(
            int((ledger.max_output[at] - ledger.output[at] - width * ledger.sampling[at]).min()) - 1,
            int((ledger.block_count[at] * block - first).min()) - width,
        )
        if ledger.limits.prefix_cache:
            slack = min(
                slack,
                int((self._saves.next_position[at] - first).min()) - 1,
                int((ledger.published[at] + block - first).min()) - width - 1,
            )
        if slack >= 0:
            self._slots = rows.members.slots
            self._last_step = step + slack // width
