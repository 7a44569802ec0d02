"""Serves one step's wishes from blocks, kept states and cached prefixes, in the order that keeps copies safe.

Everything the device does with an id is ordered by its stream, so an id that is given back here may be
granted again in the same transaction. Admission asks for the blocks of a whole prompt and takes those of its
first chunk: taking all would hold blocks nobody reads yet, asking for less would admit prompts that then
evict each other half-way.

Invariant: a block is exactly one of scratch, referenced, cached only (idle in the index) or free; the last
two can be granted.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from stepahead.engine.model.runner import Int32s, ModelFacts, RunnerShape

from .blocks import BlockPool
from .prefix_index import NO_HIT, Hit, PrefixIndex
from .reservation import EMPTY, Admitted, Candidate, Demand, Grant, Publication
from .state_slots import StateSlots


class CacheStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks without the scratch block; `free` counts cached ones too."""

    blocks: int
    free: int
    cached: int
    snapshots: int
    snapshots_free: int  # not held by anybody
    snapshots_kept: int  # in the index; the rest is granted and undecided
    publishers: int  # sequences that may still publish: those that run


class CacheCore:
    """Block references, prefix index and state slots as one. `enabled` False: no content is kept."""

    def __init__(self, shape: RunnerShape, facts: ModelFacts, enabled: bool) -> None:
        self._block_tokens = facts.block_tokens
        self._hit_margin = facts.hit_margin
        self._lookahead = 2 * (shape.draft_tokens + 1)
        self._enabled = enabled
        self._pool = BlockPool(shape.blocks)
        self._index = PrefixIndex(facts.block_tokens)
        self._slots = StateSlots(1 + shape.sequence_slots, shape.snapshot_slots)

    @property
    def free(self) -> int:
        """Blocks that could be granted now."""
        return self._pool.free + self._index.idle

    def reserve(self, demand: Demand) -> Grant:
        """Serves a demand in the order of its fields."""
        self._release(demand.released)
        self._slots.give(demand.returned_snapshots.tolist())
        for key in demand.closed:
            self._index.forget(key)
        grown, growth_blocks = self._grow(demand.growth)
        short = grown < demand.growth.size - demand.ahead
        snapshots = EMPTY if short else self._take_snapshots(demand.snapshots)
        admitted = () if short else self._admit(demand.candidates, demand.reserved)
        return Grant(
            grown=grown,
            growth_blocks=growth_blocks,
            snapshot_slots=snapshots,
            admitted=admitted,
            free=self.free,
        )

    def publish(self, publications: Iterable[Publication]) -> None:
        """Makes committed content available to later candidates."""
        for publication in publications:
            if self._enabled:
                self._slots.give(self._index.publish(publication))
            elif publication.snapshot:
                self._slots.give([publication.snapshot])

    def reset(self) -> None:
        """Forgets all cached content; running sequences keep their blocks and publish nothing more."""
        ids, snapshots = self._index.clear()
        self._pool.recycle(ids)
        self._slots.give(snapshots)

    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            blocks=self._pool.blocks - 1,
            free=self.free,
            cached=self._index.idle,
            snapshots=self._slots.count,
            snapshots_free=self._slots.free,
            snapshots_kept=self._index.snapshots,
            publishers=self._index.publishers,
        )

    def references(self) -> Int32s:
        """A copy of the reference counts, int32 [blocks], to be compared with the tables of a ledger."""
        return self._pool.references.copy()

    def check(self) -> None:
        """Raises AssertionError unless every block is in exactly one state."""
        idle = self._index.idle_ids()
        free = self._pool.free_ids()
        states = (self._pool.references > 0).astype(np.int32)
        np.add.at(states, free, 1)
        np.add.at(states, idle, 1)
        states[0] += 1
        if (states != 1).any():
            block = int(np.flatnonzero(states != 1)[0])
            raise AssertionError(f"block {block} is in {int(states[block])} states at once")

    # The parts of a transaction.

    def _release(self, ids: Int32s) -> None:
        if ids.size:
            self._pool.recycle(self._index.release(self._pool.release(ids)))

    def _allocate(self, count: int) -> Int32s:
        if count > self._pool.free:
            ids, snapshots = self._index.evict(count - self._pool.free)
            self._pool.recycle(ids)
            self._slots.give(snapshots)
        return self._pool.allocate(count)

    def _grow(self, growth: Int32s) -> tuple[int, Int32s]:
        if not growth.size:
            return 0, EMPTY
        free, grown, total = self.free, 0, 0
        for count in growth.tolist():  # a few: faster than any array
            if total + count > free:
                break
            grown, total = grown + 1, total + count
        return grown, self._allocate(total) if grown else EMPTY

    def _take_snapshots(self, count: int) -> Int32s:
        if not (count and self._enabled):
            return EMPTY
        for _ in range(count - self._slots.free):
            snapshot = self._index.evict_snapshot()
            if not snapshot:
                break
            self._slots.give([snapshot])
        return self._slots.take(count)

    def _admit(self, candidates: tuple[Candidate, ...], reserved: int) -> tuple[Admitted, ...]:
        admitted = []
        for candidate in candidates:
            start = self._start(candidate, reserved)
            if start is not None:
                admission, promised = start
                admitted.append(admission)
                reserved += promised
        return tuple(admitted)

    def _start(self, candidate: Candidate, reserved: int) -> tuple[Admitted, int] | None:
        """The admission and the blocks it will still need, or None when its whole prompt does not fit."""
        prefill = len(candidate.tokens) // 4
        hit = self._match(candidate, prefill)
        revived = int((self._pool.references[hit.blocks] == 0).sum())
        rest = self._blocks(prefill + self._lookahead) - hit.blocks.size
        if rest + candidate.headroom + revived > self.free - reserved:
            return None
        self._pool.retain(hit.blocks)
        self._index.adopt(candidate.sequence_key, hit.blocks, lasting=candidate.lasting)
        hit_tokens = hit.blocks.size * self._block_tokens
        covered = min(hit_tokens + candidate.chunk_rows, prefill)
        fresh = self._allocate(self._blocks(covered) - hit.blocks.size)
        admission = Admitted(
            sequence_key=candidate.sequence_key,
            hit_tokens=hit_tokens,
            blocks=np.concatenate([hit.blocks, fresh]),
            snapshot=hit.snapshot,
        )
        return admission, rest + candidate.headroom - fresh.size

    def _match(self, candidate: Candidate, prefill: int) -> Hit:
        if not self._enabled:
            return NO_HIT
        limit = prefill - self._hit_margin
        if candidate.most_hit is not None:
            limit = min(limit, candidate.most_hit)
        return self._index.match(candidate.tokens, candidate.salt, limit)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)
