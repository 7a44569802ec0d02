"""Sampling where the device chooses what each row needs: a draw, a settlement and a chain of drafts.

The host only says how many sequences there are, so the three calls run eagerly and inside a captured step
alike. `choosing.py` is the other form, for devices that pay for every row they look at.

Invariant: nothing here reads a tensor or a mirror of one; `SamplingSlots.generation` tells whoever captured
these calls that a table has moved.
"""

from __future__ import annotations

from torch import Tensor

from stepahead.devices.kernels.reference.sampling.tables import (
    SampledSequences,
    SettledTokens,
    SlotTensors,
)

from .caches import Caches
from .model import Model
from .sampling_slots import SamplingSlots
from .slots import SlotState


class FusedSampler:
    """Draws, settles and drafts for one model through its operations."""

    def __init__(self, model: Model, state: SlotState, tables: SamplingSlots) -> None:
        self._model, self._state, self._tables = model, state, tables
        self._slots = SlotTensors(state.position, state.token, state.drafts, state.history)

    def sample(
        self,
        logits: Tensor,
        sequences: SampledSequences,
        chunk_tail: Tensor,
        *,
        alternatives: int = -1,
        allowed_bits: Tensor | None = None,
    ) -> SettledTokens:
        """Draw at every row, accept drafts, and write the slots of all these sequences."""
        operations, tables = self._model.operations, self._tables.tables()
        drawn = operations.draw_tokens(
            logits,
            sequences,
            self._state.drafts,
            tables,
            alternatives=alternatives,
            allowed_bits=allowed_bits,
        )
        return operations.settle_(drawn, sequences, self._slots, tables, chunk_tail)

    def draft(self, slots: Tensor, caches: Caches) -> None:
        """Guess what follows the newest tokens of `slots`, with the noise their target will be drawn with."""
        token, position = self._state.token[slots], self._state.position[slots]
        inputs = self._model.draft(token, position - 1, slots, caches).chain_inputs()
        tables, odds = self._tables.tables(), self._state.confidence
        self._model.operations.draft_chain_(inputs, slots, self._slots, tables, odds)

    def pass_by(self, slots: Tensor, position: Tensor, chunk_tail: Tensor) -> None:
        """Write the slots of prompts whose chunk draws nothing."""
        self._state.position[slots] = position
        self._state.history[slots] = chunk_tail
