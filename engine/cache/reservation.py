"""What a step asks of the cache, and what it is given: one transaction per step, and none in most steps.

The scheduler knows who needs how much; the cache knows which ids are free, shared or reusable. Ids cross the
border as arrays and never as shared objects. All of a step's wishes go in one `Demand`, served in the order
below; a decode step in which nobody crosses a block boundary makes no demand at all.

Rejected: a lock held while planning (the engine we learned from), and one message per sequence.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stepahead.engine.model.runner import Int32s

EMPTY = np.empty(0, dtype=np.int32)
EMPTY.setflags(write=False)


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A waiting sequence that could start now: look up its prefix and give it blocks for its first chunk."""

    sequence_key: int
    tokens: bytes  # int32, everything to prefill
    salt: bytes
    chunk_rows: int  # most rows of its first chunk
    headroom: int = 0  # blocks to be free behind its prompt, for what it will probably generate
    lasting: bool = False  # what it uses is evicted late, see `PrefixIndex`
    most_hit: int | None = None  # tokens that a hit may cover at most, where rows behind must be computed


class Demand(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One step's wishes. Served in this order; a shortage ends serving, it never reorders."""

    released: Int32s = EMPTY  # block ids that lose one reference each (left, preempted); repeated ids count
    returned_snapshots: Int32s = EMPTY  # granted snapshot slots that turned out unusable
    closed: tuple[int, ...] = ()  # sequence keys that will publish nothing more
    growth: Int32s = EMPTY  # [g] blocks each growing sequence needs, oldest first
    ahead: int = 0  # the last so many entries of `growth` are for later steps: no shortage if they do not fit
    snapshots: int = 0  # state slots wanted for keeping window states
    candidates: tuple[Candidate, ...] = ()  # in admission order
    reserved: int = 0  # blocks that running sequences will need; candidates fit beside them or not at all

    @property
    def asks(self) -> bool:
        """Whether planning must wait for the grant; a demand that only gives back is sent and forgotten."""
        return bool(self.growth.size or self.snapshots or self.candidates)


class Admitted(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A candidate that may start."""

    sequence_key: int
    hit_tokens: int  # cached already; a multiple of block_tokens, at most prefill - hit_margin
    blocks: Int32s  # the hit's, then fresh ones, in table order; one reference each is the sequence's
    snapshot: int  # state slot to copy from, 0 when hit_tokens is 0


class Grant(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The answer. `grown < len(growth) - ahead` is the only shortage that calls for a preemption."""

    grown: int  # leading entries of `growth` that were served
    growth_blocks: Int32s  # their ids, concatenated
    snapshot_slots: Int32s  # possibly fewer than asked
    admitted: tuple[Admitted, ...]  # a subsequence of the candidates: those that fit, in order
    free: int  # blocks that could still be granted


class Publication(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Blocks of a sequence whose content is committed, so that others may share it."""

    sequence_key: int
    salt: bytes
    first_column: int  # continues exactly where this sequence's last publication (or hit) ended
    tokens: bytes  # int32, len(blocks) * block_tokens of them
    blocks: Int32s  # may be empty: the state behind what was published before
    snapshot: int  # state slot that holds the window at the end of the last block; 0: none was kept
    session: str = ""  # requests that continue each other: the newest state of a session replaces its last
    lasting: bool = False
