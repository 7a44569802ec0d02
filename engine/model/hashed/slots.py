"""What the hashed device holds between steps: caches, sequence states, sampling parameters, as in a real one.

Everything is indexed by block or slot and written by enqueued work only. Slot 0 and block 0 are scratch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..runner import HISTORY, NO_TOKEN, Bools, EditRows, Float32s, Int32s, RunnerShape, SamplingRows, UInt64s
from .choosing import RowParams
from .edits import SequenceEdits, edits_of_row
from .model import HashedModel

GARBAGE = 0xDEADBEEFDEADBEEF
"""What memory holds before it is written: a read of it must not pass for a zero."""


class MisuseError(AssertionError):
    """The engine broke a rule of the runner's contract; a real device would compute nonsense silently."""


def require(holds: bool | np.bool_, rule: str, *what: object) -> None:
    """Raises `MisuseError` naming the broken rule, its `{}` filled in."""
    if not holds:
        raise MisuseError(rule.format(*what))


class Slots:
    """Arrays of one runner. `columns` and shapes as in `RunnerShape`."""

    def __init__(self, model: HashedModel, shape: RunnerShape) -> None:
        sequences = shape.sequence_slots + 1
        self.blocks: UInt64s = np.full((shape.blocks, model.block_tokens), GARBAGE, dtype=np.uint64)
        self.rings: UInt64s = np.full((shape.state_slots, model.ring), GARBAGE, dtype=np.uint64)
        self.table: Int32s = np.zeros((sequences, shape.table_columns), dtype=np.int32)
        self.position: Int32s = np.zeros(sequences, dtype=np.int32)
        self.token: Int32s = np.zeros(sequences, dtype=np.int32)
        self.drafts: Int32s = np.zeros((sequences, shape.draft_tokens), dtype=np.int32)
        self.confidences: Float32s = np.zeros((sequences, shape.draft_tokens), dtype=np.float32)
        self.history: Int32s = np.full((sequences, HISTORY), NO_TOKEN, dtype=np.int32)
        self._parameters: dict[str, npt.NDArray[Any]] = {
            "temperature": np.zeros(sequences, dtype=np.float32),
            "top_k": np.zeros(sequences, dtype=np.int32),
            "top_p": np.ones(sequences, dtype=np.float32),
            "min_p": np.zeros(sequences, dtype=np.float32),
            "seed": np.zeros(sequences, dtype=np.uint64),
            "choice": np.zeros(sequences, dtype=np.int32),
            "origin": np.zeros(sequences, dtype=np.int32),
            "min_output": np.zeros(sequences, dtype=np.int32),
            "end_ids": np.full((sequences, shape.max_stop_ids), NO_TOKEN, dtype=np.int32),
            "processed": np.zeros(sequences, dtype=np.bool_),
            "forced": np.full(sequences, NO_TOKEN, dtype=np.int32),
            "most_drafts": np.zeros(sequences, dtype=np.int32),
        }
        size = (sequences, shape.draft_tokens, model.vocab_size) if shape.rejection else (0, 0, 0)
        self.guesses: Float32s = np.zeros(size, dtype=np.float32)  # what drafts were drawn from
        self.edits: dict[int, SequenceEdits] = {}
        self._sequences = sequences
        self._shape = shape

    def copy_states(self, copies: Int32s) -> None:
        """Whole rings, one copy after another."""
        for source, destination in copies.tolist():
            require(0 < source < len(self.rings), "state {} is copied, which does not exist", source)
            require(
                0 < destination < len(self.rings), "state {} is written, which does not exist", destination
            )
            self.rings[destination] = self.rings[source]

    def forget_tables(self, slots: Int32s) -> None:
        """A newcomer's table must come whole: what its slot's last occupant left is no longer there."""
        self.table[slots] = 0

    def update_tables(self, updates: Int32s) -> None:
        if updates.size == 0:
            return
        slot, column, block = updates.T
        require(((slot > 0) & (slot < self._sequences)).all(), "table updates of unknown slots: {}", slot)
        require(((block > 0) & (block < len(self.blocks))).all(), "unknown blocks are granted: {}", block)
        self.table[slot, column] = block

    def update_parameters(self, rows: SamplingRows, edits: EditRows | None) -> None:
        for name, values in self._parameters.items():
            values[rows.slots] = getattr(rows, name)
        for slot in rows.slots.tolist():
            self.edits.pop(slot, None)
        if edits is not None:
            self.edits |= {slot: edits_of_row(edits, row) for row, slot in enumerate(edits.slots.tolist())}

    def parameters(self, slots: Int32s, ahead: Callable[[int], Int32s]) -> RowParams:
        """By row, for rows of these slots; `ahead(row)` are tokens it assumes behind those of its slot."""
        names = [name for name in RowParams.__struct_fields__ if name != "edits"]
        edits = [
            self.edits[slot].assuming(ahead(row).tolist()) if slot in self.edits else None
            for row, slot in enumerate(slots.tolist())
        ]
        return RowParams(**{name: self._parameters[name][slots] for name in names}, edits=edits)

    def processed(self, slots: Int32s) -> Bools:
        """Whose logprobs are of the distribution drawn from."""
        processed: Bools = self._parameters["processed"][slots]
        return processed

    def most_drafts(self, slots: Int32s) -> Int32s:
        """Caps of verified drafts, at most those there are."""
        most: Int32s = np.minimum(self._parameters["most_drafts"][slots], self.drafts.shape[1])
        return most

    def forced(self, slots: Int32s) -> Int32s:
        """What prefills of these slots draw at their end, NO_TOKEN where they do draw."""
        forced: Int32s = self._parameters["forced"][slots]
        return forced

    def origin(self, slots: Int32s) -> Int32s:
        origin: Int32s = self._parameters["origin"][slots]
        return origin
