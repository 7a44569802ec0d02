"""Flat rows of many sequences, and where each row reads and writes.

A step is a flat list of token rows: long prompt chunks and single decode rows, of any sequences, in any mix.
Padding every sequence to the longest would multiply the work of a mixed step; a loop over sequences would
cost a launch each. So everything a row needs to know is an index tensor, computed once a step from a few
numbers per sequence, on the device: a step whose lengths were corrected there needs no answer from the host.

Two stores are rings indexed by position: window keys and unfinished compressor groups. A chunk longer than
the ring must not overwrite history that its own first rows still need, so every ring pool ends in a staging
area with one slot a row: the chunk writes there, reads its history from the ring and itself from staging, and
copies its last positions into the ring when it is done. Decode rows take the same path; there is no second
one. Only the moment of the copy differs: a chunk short enough to spare all history may copy before it reads.

Slot 0 of every ring and block 0 of every paged pool are scratch: writes that must not happen go there. The
very first place of a pool is never written, because an index of -1 reads it: a masked key is multiplied by an
exact zero, and a NaN of one sequence in that place would reach all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .attention import KeyIndex

BLOCK_TOKENS = 128
"""Tokens of one block of paged keys; even, so that a ratio-2 group never straddles two blocks."""


class Tiles:
    """Rows grouped so that each group belongs to one sequence: what the indexer scores together.

    Scoring needs a row's queries against all keys of its sequence. Gathering the keys per row would read them
    once a row; per tile they are read once for up to `rows` rows. Tiles of a sequence are consecutive. The
    tensors are made when first asked for: a kernel that reads keys in place needs none of them.
    """

    def __init__(self, rows: int, longest: int) -> None:
        self.rows = rows
        self.longest = longest
        """No sequence has more rows than this."""

    @property
    def sequence(self) -> Tensor:
        """`[tiles]`."""
        return self._tensors[0]

    @property
    def offset(self) -> Tensor:
        """`[tiles]`, first row within the sequence."""
        return self._tensors[1]

    @property
    def first(self) -> Tensor:
        """`[sequences]`, first tile of the sequence."""
        return self._tensors[2]

    @cached_property
    def _tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self._lay()

    def _lay(self) -> tuple[Tensor, Tensor, Tensor]:
        raise NotImplementedError


class UniformTiles(Tiles):
    """One tile of fixed height per sequence."""

    def __init__(self, sequences: int, rows: int, device: torch.device) -> None:
        super().__init__(rows, rows)
        self._sequences, self._device = sequences, device

    def _lay(self) -> tuple[Tensor, Tensor, Tensor]:
        numbers = torch.arange(self._sequences, device=self._device)
        return numbers, torch.zeros_like(numbers), numbers


def uniform_tiles(sequences: int, rows: int, device: torch.device) -> Tiles:
    """One tile of fixed height per sequence: for decode steps whose lengths only the device knows."""
    return UniformTiles(sequences, rows, device)


@dataclass(frozen=True)
class Rows:
    """Rows of one step in sequence order. All tensors int64 on the device."""

    sequence: Tensor  # [rows], index into the per-sequence tensors
    position: Tensor  # [rows], absolute
    row_start: Tensor  # [sequences], first row
    first_position: Tensor  # [sequences], position of the first row = tokens already cached
    length: Tensor  # [sequences], rows of the sequence
    tiles: Tiles

    @property
    def count(self) -> int:
        return self.sequence.shape[0]

    @cached_property
    def tile_members(self) -> Tensor:
        """Row numbers `[tiles, height]`; places beyond the end of a sequence repeat rows nobody reads
        back."""
        tiles = self.tiles
        first = self.row_start[tiles.sequence] + tiles.offset
        members = first.unsqueeze(1) + torch.arange(tiles.rows, device=first.device)
        return members.clamp(max=self.count - 1)

    @cached_property
    def tile_places(self) -> Tensor:
        """Place `[rows]` of each row in the flattened tiles."""
        number = torch.arange(self.count, device=self.sequence.device)
        return self.tiles.first[self.sequence] * self.tiles.rows + number - self.row_start[self.sequence]


def lay_rows(first_position: Tensor, length: Tensor, count: int, tiles: Tiles) -> Rows:
    """Rows from per-sequence lengths that sum to `count`, without asking for their values."""
    ends = length.cumsum(0)
    number = torch.arange(count, device=length.device)
    sequence = torch.searchsorted(ends, number, right=True)
    row_start = ends - length
    position = first_position[sequence] + number - row_start[sequence]
    return Rows(sequence, position, row_start, first_position, length, tiles)


@dataclass(frozen=True)
class RingIndex:
    """Where rows find the last positions of their sequence, and where they leave their own."""

    staging: int  # first staging slot of the pool
    keys: KeyIndex  # of each row, the pool slots of the last `width` positions, ascending
    store: Tensor  # [rows] ring slot of the row, a scratch slot where it must not be kept
    store_first: bool
    """Rows may be stored before anybody reads: no chunk is long enough to overwrite what it reads."""


def ring_index(
    rows: Rows,
    state_slot: Tensor,
    *,
    width: int,
    ring: int,
    slots: int,
    wide: torch.dtype,
    floor: Tensor | None = None,
) -> RingIndex:
    """Index a pool of `slots` rings of `ring` positions followed by staging.

    `floor` `[sequences]` is the lowest position a row may see or keep; None means 0. Of a chunk longer than
    the ring only the last `ring` positions are kept.
    """
    staging = slots * ring
    position, sequence = rows.position, rows.sequence
    back = torch.arange(width - 1, -1, -1, device=position.device)
    seen = position.unsqueeze(1) - back
    first = rows.first_position[sequence].unsqueeze(1)
    in_chunk = staging + rows.row_start[sequence].unsqueeze(1) + seen - first
    slot = state_slot[sequence]
    in_ring = slot.unsqueeze(1) * ring + seen % ring
    gather = torch.where(seen >= first, in_chunk, in_ring)
    lowest = floor[sequence] if floor is not None else torch.zeros_like(position)
    gather = gather.masked_fill(seen < lowest.clamp(min=0).unsqueeze(1), -1)
    after_chunk = rows.first_position[sequence] + rows.length[sequence]
    kept = (position >= after_chunk - ring) & (position >= lowest) & (slot > 0)
    scratch = 1 + position % (ring - 1)
    store = torch.where(kept, slot * ring + position % ring, scratch)
    return RingIndex(staging, KeyIndex.of(gather, wide), store, spares_history(rows.tiles, width, ring))


def spares_history(tiles: Tiles, width: int, ring: int) -> bool:
    """Whether no chunk is long enough to overwrite ring slots that its own rows read.

    A chunk of n rows from position f writes f..f+n-1 and reads down to f-width+1: a slot is shared where two
    of these are `ring` apart, so from n = ring - width + 2 on.
    """
    return tiles.longest <= ring - width + 1


@dataclass(frozen=True)
class EntryIndex:
    """Compressed entries of one ratio: what a row may see, and which entry it completes."""

    ratio: int
    per_block: int
    visible: Tensor  # [rows], entries 0..visible-1 are in the row's past
    position: Tensor  # [rows], rotary position of the entry the row belongs to
    store: Tensor  # [rows], pool slot of the entry the row completes, a scratch slot where it completes none


def entry_index(rows: Rows, block_table: Tensor, ratio: int, floor: Tensor) -> EntryIndex:
    """Paged entry slots. Rows below `floor` `[sequences]` complete nothing: their entries already exist."""
    position, sequence = rows.position, rows.sequence
    per_block = BLOCK_TOKENS // ratio
    entry = position // ratio
    completes = ((position + 1) % ratio == 0) & (position >= floor[sequence])
    block = block_table[sequence, position // BLOCK_TOKENS]
    scratch = 1 + entry % (per_block - 1)
    store = torch.where(completes & (block > 0), block * per_block + entry % per_block, scratch)
    return EntryIndex(ratio, per_block, (position + 1) // ratio, entry * ratio, store)


def entry_slots(entries: Tensor, sequence: Tensor, block_table: Tensor, per_block: int) -> Tensor:
    """Pool slots of entry numbers `[rows, count]`; -1 stays -1. `sequence` `[rows]` chooses table rows."""
    safe = entries.clamp(min=0)
    blocks = block_table[sequence.unsqueeze(1), safe // per_block]
    return torch.where(entries < 0, -1, blocks * per_block + safe % per_block)
