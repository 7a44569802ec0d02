"""Serves the cache to the scheduler: one transaction per step, and none in most steps.

All state is in `CacheCore`; this file gives it a mailbox, so that a cache on another tier, or one that must
wait for a copy, changes nothing for the scheduler.

Invariant: publications of a commit are in the index before the next demand is served (one mailbox, in order).
"""

from __future__ import annotations

from stepahead.engine.cache.core import CacheCore

from .actor import Actor
from .messages import BlocksFilled, PrefixCacheResetRequested, ReservationRequested

Accepted = ReservationRequested | BlocksFilled | PrefixCacheResetRequested


class CacheManager(Actor[Accepted]):
    """Owns block references, the prefix index and the snapshot slots."""

    name = "cache_manager"
    accepts = (ReservationRequested, BlocksFilled, PrefixCacheResetRequested)

    def __init__(self, core: CacheCore, *, capacity: int) -> None:
        super().__init__(capacity)
        self.core = core

    async def handle(self, message: Accepted) -> None:
        began = self.trace.clock()
        match message:
            case ReservationRequested(demand=demand, reply=reply):
                grant = self.core.reserve(demand)
                if reply is not None:
                    reply.send(grant)
                self.trace.span("cache_manager.reserve", began)
            case BlocksFilled(publications=publications):
                self.core.publish(publications)
                self.trace.span("cache_manager.publish", began)
            case PrefixCacheResetRequested(reply=reply):
                self.core.reset()
                reply.send(None)
                self.trace.span("cache_manager.reset", began)
