"""The victims are the cheapest to recompute in the lowest priority, and never the oldest sequence."""

from __future__ import annotations

import numpy as np
import pytest

from stepahead.engine.scheduling.ledger import DECODE, LEAVING, PREFILL, Ledger
from stepahead.engine.scheduling.preemption import choose_victims
from stepahead.engine.scheduling.sequence import seniority

from .core_driver import Setup, make_request

Row = tuple[int, int, int, int] | tuple[int, int, int, int, str]
"""Priority, cached, retained, blocks of the next key; "ending": its last token is in flight."""


@pytest.mark.parametrize(
    ("rows", "short", "victims"),
    [
        ([(0, 40, 0, 10)], 1, []),
        ([(0, 4, 0, 1), (0, 40, 0, 10)], 1, [2]),
        ([(0, 4, 0, 1), (0, 40, 0, 10), (0, 20, 0, 5)], 1, [3]),
        ([(0, 4, 0, 1), (0, 40, 36, 10), (0, 20, 0, 5)], 1, [2]),  # it can resume at 36
        ([(0, 4, 0, 1), (0, 20, 0, 5), (0, 20, 0, 5)], 1, [3]),  # equal cost: the youngest
        ([(0, 9, 0, 3), (1, 40, 0, 10), (1, 4, 0, 1), (0, 8, 0, 2)], 1, [4]),  # 3 is cheaper and matters more
        ([(0, 4, 0, 1), (1, 40, 0, 10), (1, 8, 0, 2)], 1, [1]),  # the oldest is the first of the highest
        ([(0, 4, 0, 1), (1, 9, 0, 2), (0, 8, 0, 2), (1, 40, 0, 10, "ending")], 1, [4]),
        ([(0, 4, 0, 1), (0, 8, 0, 2), (0, 12, 0, 3), (0, 16, 0, 4)], 4, [2, 3]),
        ([(0, 4, 0, 1), (0, 8, 0, 2), (0, 12, 0, 3), (0, 16, 0, 4)], 99, [2, 3, 4]),
    ],
)
def test_victims(rows: list[Row], short: int, victims: list[int]) -> None:
    ledger = Ledger(Setup(slots=6).limits())
    retained = np.zeros(7, dtype=np.int32)
    for slot, (priority, cached, kept, blocks, *ending) in enumerate(rows, start=1):
        ledger.output[slot], ledger.sampling[slot], ledger.max_output[slot] = 5, 1, 6 if ending else 7
        ledger.phase[slot] = DECODE if slot % 2 else PREFILL
        ledger.seniority[slot] = seniority(make_request(slot, [1], priority=priority))
        ledger.cached[slot], retained[slot], ledger.block_count[slot] = cached, kept, blocks
    ledger.phase[6], ledger.block_count[6] = LEAVING, 50  # no longer runs: its blocks come back anyway
    assert choose_victims(ledger, retained, short).tolist() == victims
