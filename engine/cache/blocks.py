"""Reference counts of cache blocks, and the free list.

A block belongs to whoever references it, and several may: choices of one request, requests with one prefix.
It is returned by a count reaching zero and by nothing else. What happens then (kept for a later hit, or free)
is not decided here.

Invariant: block 0 is scratch, never granted; a block is on the free list at most once, and never while it is
referenced.
"""

from __future__ import annotations

import numpy as np

from stepahead.engine.model.runner import Int32s


class BlockPool:
    """Blocks 1..blocks - 1. Raises `ValueError` for what only a bug can ask."""

    def __init__(self, blocks: int) -> None:
        if blocks < 2:
            raise ValueError(f"a pool of {blocks} blocks has none beside the scratch block")
        self.blocks = blocks
        self.references: Int32s = np.zeros(blocks, dtype=np.int32)
        self._stack: Int32s = np.arange(blocks - 1, 0, -1, dtype=np.int32)  # the lowest id on top
        self._free = blocks - 1

    @property
    def free(self) -> int:
        """Blocks on the free list."""
        return self._free

    def allocate(self, count: int) -> Int32s:
        """Takes so many free blocks, one reference each."""
        if count > self._free:
            raise ValueError(f"{count} blocks asked, {self._free} free")
        self._free -= count
        ids: Int32s = self._stack[self._free : self._free + count][::-1].copy()
        self.references[ids] = 1
        return ids

    def retain(self, ids: Int32s) -> None:
        """One more reference each; `ids` are distinct."""
        self.references[ids] += 1

    def release(self, ids: Int32s) -> Int32s:
        """One reference less per mention. Returns the ids that reached zero, in order of last mention.

        They are on no list until `recycle`.
        """
        np.subtract.at(self.references, ids, 1)
        counts = self.references[ids]
        if (counts < 0).any():
            raise ValueError(f"block {int(ids[counts.argmin()])} was released more often than retained")
        zero = ids[counts == 0].tolist()
        last_mentions = dict.fromkeys(reversed(zero))
        return np.array(list(last_mentions)[::-1], dtype=np.int32)

    def recycle(self, ids: Int32s) -> None:
        """Puts unreferenced blocks, each once, back on the free list."""
        if self.references[ids].any():
            raise ValueError("a referenced block cannot be free")
        if self._free + ids.size >= self.blocks:
            raise ValueError("more blocks would be free than there are")
        self._stack[self._free : self._free + ids.size] = ids[::-1]
        self._free += ids.size

    def free_ids(self) -> Int32s:
        """The free list, for checks."""
        return self._stack[: self._free].copy()
