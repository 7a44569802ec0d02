"""The whole pure core under random workloads: text, invariants and returns, checked after every event.

A failing seed is a script: `random_workload(seed)` repeats it exactly.
"""

from __future__ import annotations

from collections import Counter

import pytest

from .core_driver import Driver, random_workload

FEW = range(24)
MANY = range(24, 400)


def _tally(driver: Driver) -> Counter[str]:
    layouts = [plan.layout for plan in driver.plans]
    return Counter(
        preemptions=driver.core.counts().preemptions,
        hits=sum(hit > 0 for hits in driver.hits.values() for hit in hits),
        states=sum(plan.state_copies.shape[0] for plan in driver.plans),
        mixed=sum(0 < layout.decode_count < layout.slots.size for layout in layouts),
        finished=sum(end == "finished" for end in driver.ended.values()),
        cancelled=sum(end == "cancelled" for end in driver.ended.values()),
        deadline=sum(end == "deadline" for end in driver.ended.values()),
        accepted=driver.accepted,
        rejected=driver.rejected,
    )


def test_random_workloads_are_exact_and_leave_nothing_behind() -> None:
    tally: Counter[str] = Counter()
    for seed in FEW:
        tally += _tally(random_workload(seed))
    # a workload that never does the hard things would pass as well
    rare = {name: count for name, count in tally.items() if count < 5}
    assert len(tally) == 9
    assert rare == {}, rare


@pytest.mark.slow
@pytest.mark.parametrize("seed", MANY)
def test_more_random_workloads(seed: int) -> None:
    random_workload(seed)
