"""Which window states are worth keeping, when they can be copied, and when such a copy is proven good.

A prefix hit at position H needs the sliding window as it was at H, and the device has it only shortly: plan
n+1 can copy the state that step n leaves. With f the first position of step n and f' of step n+1, the copy
serves H when f <= H <= f'. A prompt's chunk ends exactly at f'. A decode step with drafts may or may not
reach H, which its commit tells: a copy that missed is made again by the next plan, into the same slot.

Invariant: a sequence holds at most one granted slot whose fate is open; it is published or given back. It may
hold it before it copies anything (`ahead.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from stepahead.engine.cache.reservation import EMPTY, Publication
from stepahead.engine.model.runner import Int32s

from .ledger import DECODE, Ledger

NEVER = np.int32(np.iinfo(np.int32).max)


MISSED = -1


class _Copy(msgspec.Struct, frozen=True):
    """A granted slot and what was copied into it."""

    snapshot: int
    position: int
    step: int  # its commit tells whether the copy is good; MISSED once it told otherwise


class WindowSaves:
    """Per slot: the next boundary worth keeping, and the copy in flight."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._block = ledger.limits.block_tokens
        self._enabled = ledger.limits.prefix_cache
        # rows that step n may have written past a position and still leave its window whole
        self._slack = max(0, ledger.limits.width - ledger.limits.backtracking)
        slots = ledger.phase.size
        self.next_position: Int32s = np.full(slots, NEVER, dtype=np.int32)
        self.retained: Int32s = np.zeros(slots, dtype=np.int32)  # last position a hit could resume from
        self._copies: dict[int, _Copy] = {}
        self._proven: dict[int, _Copy] = {}  # good, and published at once
        self._ready: dict[int, int] = {}  # granted ahead for a slot's next copy

    def occupy(self, slot: int, hit_tokens: int) -> None:
        self.next_position[slot] = NEVER
        self.retained[slot] = hit_tokens

    def vacate(self, slot: int) -> list[int]:
        """The occupant is gone; returns the state slots that nobody will publish."""
        self.next_position[slot] = NEVER
        self.retained[slot] = 0
        copy, ready = self._copies.pop(slot, None), self._ready.pop(slot, 0)
        return [snapshot for snapshot in (copy.snapshot if copy else 0, ready) if snapshot]

    def chunk_planned(self, slot: int, end: int) -> None:
        """A chunk ends at `end`, whose state is worth keeping if that is a block boundary.

        Behind the last chunk the next boundary is the first that decoding can meet; behind others the next
        chunk moves it on.
        """
        if self._enabled:
            self.next_position[slot] = -(-end // self._block) * self._block

    def due(self, slots: Int32s) -> list[int]:
        """Of the slots that have rows in the plan being made, those whose state should be copied by it.

        `slots` are the candidates that reached `next_position` optimistically, in any order.
        """
        ledger = self._ledger
        ahead = zip(
            slots.tolist(), ledger.cached[slots].tolist(), ledger.inflight[slots].tolist(), strict=True
        )
        return [slot for slot, cached, inflight in ahead if self._reaches(slot, cached, inflight)]

    def _reaches(self, slot: int, cached: int, inflight: int) -> bool:
        position, certain = int(self.next_position[slot]), cached + self._slack
        if not inflight:
            position = cached // self._block * self._block
        elif (
            position < certain
            and inflight == self._ledger.limits.width
            and self._ledger.phase[slot] == DECODE
        ):
            position = -(-certain // self._block) * self._block
        self.next_position[slot] = position
        return position <= cached + inflight

    def unprovided(self, slots: list[int]) -> list[int]:
        """Those that must ask for a state slot: a copy that missed has one, and some were granted ahead."""
        return [slot for slot in slots if slot not in self._copies and slot not in self._ready]

    def copy(
        self, due: list[int], granted: Int32s, step: int, soon: Sequence[int] = ()
    ) -> tuple[list[tuple[int, int]], list[int]]:
        """Uses the granted slots in order, what is left for those in `soon`. Returns (source, destination)
        pairs, and slots proven at once.

        `step` is the newest planned: what it leaves is copied. Those without a grant pass on to their next
        boundary.
        """
        pairs, proven = [], []
        spare = iter(granted.tolist())
        for slot in due:
            held = self._copies.pop(slot, None)
            snapshot = held.snapshot if held else self._ready.pop(slot, 0) or next(spare, 0)
            if not snapshot:
                self._pass(slot)
                continue
            pairs.append((slot, snapshot))
            copy = _Copy(snapshot, int(self.next_position[slot]), step)
            if self._ledger.inflight[slot]:
                self._copies[slot] = copy
            else:
                self._proven[slot] = copy
                proven.append(slot)
        self._ready.update(zip(soon, spare, strict=False))
        return pairs, proven

    @property
    def any_in_flight(self) -> bool:
        """Whether a copy waits for its proof."""
        return bool(self._copies)

    def settle(self, step: int) -> list[int]:
        """Slots whose copy is proven good by the commit of this step; that of others has missed.

        A boundary reached by a later commit proves nothing: the copy is older than that step.
        """
        proven = []
        for slot, copy in list(self._copies.items()):
            if copy.step == step:
                if copy.position <= self._ledger.cached[slot]:
                    self._proven[slot] = self._copies.pop(slot)
                    proven.append(slot)
                else:
                    self._copies[slot] = _Copy(copy.snapshot, copy.position, MISSED)
        return proven

    def publish(self, slot: int, key: int, salt: bytes) -> list[Publication]:
        """What became shareable: filled blocks, and the state copied at a boundary that is now committed."""
        if not self._enabled:
            return []
        ledger = self._ledger
        begin, end = int(ledger.published[slot]), int(ledger.cached[slot]) // self._block * self._block
        ledger.published[slot] = end
        copy = self._proven.pop(slot, None)
        if copy is None:
            return [self._publication(slot, key, salt, begin, end, 0)] if begin < end else []
        position = copy.position
        self.retained[slot] = position
        if self.next_position[slot] == position:
            self._pass(slot)
        # the state belongs to what ends at its position, which may have been published before
        publications = [self._publication(slot, key, salt, min(begin, position), position, copy.snapshot)]
        if max(begin, position) < end:
            publications.append(self._publication(slot, key, salt, max(begin, position), end, 0))
        return publications

    def _publication(
        self, slot: int, key: int, salt: bytes, begin: int, end: int, snapshot: int
    ) -> Publication:
        columns = slice(begin // self._block, end // self._block)
        return Publication(
            sequence_key=key,
            salt=salt,
            first_column=columns.start,
            tokens=self._ledger.tokens[slot, begin:end].tobytes(),
            blocks=self._ledger.table[slot, columns].copy() if end > begin else EMPTY,
            snapshot=snapshot,
        )

    def _pass(self, slot: int) -> None:
        """On to the next boundary a decode will meet; the next chunk of a prompt sets its own."""
        self.next_position[slot] += self._block

    def held(self) -> list[int]:
        """State slots whose fate is open, for checks."""
        return [*(copy.snapshot for copy in self._copies.values()), *self._ready.values()]
