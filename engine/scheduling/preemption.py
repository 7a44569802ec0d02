"""Which running sequences give way when the blocks run out: those that are cheapest to compute again.

Only the lowest priority present is touched, and never the oldest sequence, which therefore always reaches its
end: validation made sure that it fits alone. Rejected: the longest output first (the engine we learned from),
which throws away the most work, and preempting before a block is really missing.
"""

from __future__ import annotations

import numpy as np

from stepahead.engine.model.runner import Int32s

from .ledger import Ledger
from .sequence import PRIORITY_SHIFT


def choose_victims(ledger: Ledger, retained: Int32s, blocks_short: int) -> Int32s:
    """Slots to preempt, int32 [v], until their tables hold `blocks_short` blocks, or all that may be.

    `retained` int32 [slots]: the last position from which a sequence could resume by a prefix hit. Order:
    those whose last token is in flight (they end where they wait, nothing is computed again), then lowest
    priority, then fewest tokens to recompute, then youngest. Empty when only the oldest runs. Blocks that
    victims share are counted for each, so the caller asks again if that was not enough.
    """
    running = ledger.occupied()[1:]
    if not running.size:
        return np.empty(0, dtype=np.int32)
    seniority = ledger.seniority[running]
    recompute = (ledger.cached + ledger.inflight - retained)[running]
    unfinished = (ledger.output + ledger.sampling < ledger.max_output)[running]
    order = np.lexsort((-seniority, recompute, -(seniority >> PRIORITY_SHIFT), unfinished))
    ranked = running[order]
    enough = int(np.searchsorted(np.cumsum(ledger.block_count[ranked]), blocks_short)) + 1
    return ranked[:enough].astype(np.int32)
