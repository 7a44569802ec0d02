"""The sequences that decode, and the layouts of their rows, one for each number of drafts.

Who decodes changes now and then; how many drafts are verified may change every step. What depends on the
former only (slots, keys, what may be in flight) is made once and shared by the layouts of all totals, so that
the identity of `slots` says "the same sequences", and a total that comes again is the same object again.
"""

from __future__ import annotations

import numpy as np

from stepahead.engine.model.runner import BatchLayout, Bools, Float32s, Int32s, Int64s
from stepahead.engine.model.selectors import Rows, rows_of

from .ledger import Ledger
from .verification import Float64s, even_split

MOST_LAYOUTS = 128


class Members:
    """Decoding sequences in a fixed order."""

    def __init__(self, ledger: Ledger, slots: Int32s) -> None:
        limits = ledger.limits
        drafts = limits.draft_tokens
        allowed = drafts if limits.verify is None else min(limits.verify, drafts)
        self.slots, self.count = slots, slots.size
        self.rows: Rows = rows_of(slots)
        self.sequence_keys: Int64s = ledger.sequence_keys[slots]
        self.admissions: Int64s = ledger.admissions[slots]
        self.most: Int32s = np.minimum(ledger.most_drafts[slots], np.int32(allowed))
        self.most_spare = int(self.most.sum())
        self.capped: Float32s | None = None  # [b, D] 1 where a draft may be verified; None: everywhere
        if self.most_spare < drafts * self.count:
            self.capped = (np.arange(drafts) < self.most[:, None]).astype(np.float32)
        targets = ledger.latency_target[slots]
        self.targets: Float64s | None = targets if bool(np.isfinite(targets).any()) else None
        self._samples: Bools = np.ones(self.count, dtype=np.bool_)
        self._reach: Int32s = np.full(self.count, limits.width, dtype=np.int32)
        for array in (slots, self.sequence_keys, self.admissions, self._samples, self._reach):
            array.setflags(write=False)
        self._layouts: dict[int, BatchLayout] = {}

    def layout(self, spare: int) -> BatchLayout:
        """A step that only decodes these, with `spare` drafts in an even split."""
        known = self._layouts.get(spare)
        if known is None:
            if len(self._layouts) >= MOST_LAYOUTS:
                self._layouts.clear()
            known = self._layouts[spare] = self._lay_out(spare)
        return known

    def _lay_out(self, spare: int) -> BatchLayout:
        lengths = self.most + 1 if spare == self.most_spare else even_split(self.most, spare)
        starts = np.zeros_like(lengths)
        np.cumsum(lengths[:-1], out=starts[1:])
        lengths.setflags(write=False)
        starts.setflags(write=False)
        return BatchLayout(
            slots=self.slots,
            sequence_keys=self.sequence_keys,
            admissions=self.admissions,
            query_lengths=lengths,
            row_starts=starts,
            reach=self._reach,
            samples=self._samples,
            decode_count=self.count,
            rows=self.count + spare,
        )
