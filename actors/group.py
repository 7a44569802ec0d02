"""Whether the next step is taken: asked before each one, because ranks may have to take it together.

Ranks that share experts exchange rows inside every layer, so all of them must run a step or none. Who decides
that is not the scheduler's business: it asks its group whenever it could plan, and the answer may need a
message to the other ranks. One rank alone needs none, and a lone rank must never wait: the engine we learned
from votes at intervals even then, so that a request arriving at an idle engine waits for dozens of empty
steps.

Invariant: every rank of a group asks the same number of times.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Group(ABC):
    """The ranks that step together, as one of them sees it."""

    @abstractmethod
    async def agree(self, wants: bool) -> bool:
        """Whether to plan a step now, when this rank has work for one (`wants`) or not."""


class SingleRank(Group):
    """A rank with nobody to agree with: it steps exactly when it wants to."""

    async def agree(self, wants: bool) -> bool:
        return wants
