"""Schedules of verification that no cost model would make: any number of drafts, and steps without any."""

from __future__ import annotations

import hashlib

from stepahead import Engine

RESTING = 8
"""One step of so many leaves no drafts."""


def force_budgets(engine: Engine, seed: int) -> None:
    """Makes an engine that has not begun verify by a hash of the step. Often all or nothing."""

    def draw(step: int, purpose: str) -> int:
        digest = hashlib.blake2b(f"{seed}:{step}:{purpose}".encode(), digest_size=4).digest()
        return int.from_bytes(digest)

    def spare(step: int, most: int) -> int:
        kind = draw(step, "kind") % 4
        return (0, most, draw(step, "spare") % (most + 1), draw(step, "spare") % (most + 1))[kind]

    speculation = engine._host.wiring.scheduler.core._speculation
    speculation.force(spare, lambda step: draw(step, "drafts") % RESTING > 0)
