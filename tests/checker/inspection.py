"""Looks into a running engine: the ledger's invariants after every message, who holds which block at rest.

Reaches into private fields on purpose: the point is that no caller can see these go wrong until much later.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepahead import Engine

DEEP_EVERY = 4
"""Messages between two comparisons of the tables with the cache's references."""


class Inspector:
    """Checks after messages of the scheduler. Raises AssertionError, which fails the engine and the run."""

    def __init__(self, engine: Engine) -> None:
        wiring = engine._host.wiring
        self._scheduler, self._cache = wiring.scheduler, wiring.cache_manager
        self._handled = 0
        handle = wiring.scheduler.handle

        async def inspected(message: Any) -> None:
            await handle(message)
            self.after_message()

        wiring.scheduler.handle = inspected  # type: ignore[method-assign]

    def after_message(self) -> None:
        self._handled += 1
        if self._handled % DEEP_EVERY == 0:
            self.check()

    def check(self) -> None:
        """Invariants of ledger and cache; where the two agree is known only when no message is under way."""
        core = self._scheduler.core
        core.check()
        self._cache.core.check()
        if len(self._cache.mailbox) == 0:
            _check_references(core, self._cache.core)


def _check_references(core: Any, cache: Any) -> None:
    ledger = core.ledger
    references = cache.references()
    expected = np.zeros_like(references)
    for slot in np.flatnonzero(ledger.block_count).tolist():
        np.add.at(expected, ledger.table[slot, : ledger.block_count[slot]], 1)
    returning = core._returns.blocks
    for ids in returning:
        np.add.at(expected, ids, 1)
    assert expected[0] == 0, "a table holds the scratch block"
    wrong = np.flatnonzero(references != expected)
    assert not wrong.size, f"blocks {wrong.tolist()} have references that no table holds, or lack some"
    statistics = cache.statistics()
    held = len(core.held_snapshots())
    known = statistics.snapshots_free + statistics.snapshots_kept + held
    assert known == statistics.snapshots, f"{known} of {statistics.snapshots} kept states are accounted for"


def settled(engine: Engine) -> str | None:
    """None when everything is back where it was before the first request; else what is not."""
    wiring = engine._host.wiring
    core, stats = wiring.scheduler.core, engine.stats()
    depths = {name: box.depth for name, box in stats.mailboxes.items() if box.depth or box.senders_waiting}
    slots = sorted(core._free_slots)
    conditions: dict[str, object] = {
        "running": stats.running,
        "waiting": stats.waiting,
        "blocks missing": stats.kv_blocks - stats.kv_blocks_free,
        "states missing": stats.snapshots
        - stats.snapshots_free
        - wiring.cache_manager.core.statistics().snapshots_kept,
        "messages": depths,
        "uncommitted steps": core.uncommitted,
        "live sequences": len(core._live),
        "slots missing": core.limits.sequence_slots - len(set(slots)),
        "slots doubled": len(slots) - len(set(slots)),
        "streams without an end": wiring.output.live,
        "registered requests": len(wiring.intake._registered),
        "deadlines": core.next_deadline(),
        "choice groups": len(core._groups),
        "ended keys still remembered": len(core._retiring),
        "callers outside the queue": wiring.scheduler.outside.sequences,
        "tickets": len(wiring.device_worker._runner._tickets),  # type: ignore[attr-defined]
    }
    missing = {name: value for name, value in conditions.items() if value}
    return str(missing) if missing else None
