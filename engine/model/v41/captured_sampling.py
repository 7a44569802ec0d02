"""Sampling of a captured decode step, some of whose sequences are placeholders.

The same decisions as `choosing.Chooser` makes, over tensors of fixed size alone: no list of who wants what,
since that would be a shape. Where the operations draw from tables (`fused_sampling.py`) the device reads what
every slot wants, and all but log-probabilities and masks is captured. Elsewhere only greedy rows and rows
drawn by temperature are: a graph that may draw at random makes noise for all rows and takes the likeliest
token where the temperature is 0.

Invariant: a real sequence gets bit for bit what `Chooser` would give it from the same logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from stepahead.devices.kernels.reference import sampling
from stepahead.devices.kernels.reference.sampling.tables import PROCESSED, RANDOM, SampledSequences

from ..runner import NO_TOKEN, Int32s
from .caches import Caches
from .captured_inputs import DecodeBuffers
from .choosing import Drawn
from .fused_sampling import FusedSampler
from .model import Model
from .sampling_slots import SamplingSlots
from .slots import SlotState

_TARGET = 0  # the purpose of every draw, see `processing.py`


class CapturedSampler(ABC):
    """Draws, verifies, advances and drafts for the sequences in the buffers."""

    varies: bool
    """Greedy steps have graphs of their own."""

    @abstractmethod
    def takes(self, slots: Int32s) -> bool:
        """Whether it does what these slots want. Asked after a step's updates were applied."""

    @abstractmethod
    def sample(self, buffers: DecodeBuffers, sequences: int, reach: int, random: bool) -> Drawn:
        """Draw at every place a row may stand, accept drafts, and write the slots."""

    @abstractmethod
    def draft(self, slots: Tensor, position: Tensor, count: int, random: bool) -> None:
        """Guess what follows the newest tokens, each of which will stand at `position`."""


class TableSampler(CapturedSampler):
    """By operations that read every slot's wishes from tables."""

    varies = False

    def __init__(self, model: Model, state: SlotState, tables: SamplingSlots, caches: Caches) -> None:
        self._fused, self._tables, self._caches = FusedSampler(model, state, tables), tables, caches
        self._generation = tables.generation
        self._no_tail = state.history.new_empty(0, state.history.shape[1])

    def takes(self, slots: Int32s) -> bool:
        """Graphs know tables by their addresses."""
        return self._tables.generation == self._generation

    def sample(self, buffers: DecodeBuffers, sequences: int, reach: int, random: bool) -> Drawn:
        sampled = SampledSequences(
            buffers.slots[:sequences], buffers.first[:sequences], buffers.verified[:sequences], sequences
        )
        return Drawn(*self._fused.sample(buffers.logits, sampled, self._no_tail), settled=True)

    def draft(self, slots: Tensor, position: Tensor, count: int, random: bool) -> None:
        self._fused.draft(slots, self._caches)


class PlainSampler(CapturedSampler):
    """By the reference functions, for those who want nothing but a temperature."""

    varies = True

    def __init__(self, model: Model, state: SlotState, tables: SamplingSlots, caches: Caches) -> None:
        self._model, self._state, self._tables, self._caches = model, state, tables, caches

    def takes(self, slots: Int32s) -> bool:
        return not (self._tables.work[slots] & ~(RANDOM | PROCESSED)).any()

    def sample(self, buffers: DecodeBuffers, sequences: int, reach: int, random: bool) -> Drawn:
        drawn = self._choose(buffers, sequences, reach, random)
        self._advance(buffers.slots[:sequences], buffers.first[:sequences], drawn)
        return drawn

    def _choose(self, buffers: DecodeBuffers, sequences: int, reach: int, random: bool) -> Drawn:
        """Draw and accept. Writes nothing.

        Which rows a sequence has is a value, and how many it may have a shape: places beyond its last row
        repeat that row.
        """
        slots, lengths = buffers.slots[:sequences], buffers.verified[:sequences]
        starts = lengths.cumsum(0) - lengths
        place = torch.arange(reach, device=slots.device)
        inside = torch.minimum(place, (lengths - 1).unsqueeze(1))
        rows = (starts.unsqueeze(1) + inside).clamp(max=buffers.logits.shape[0] - 1)
        first = buffers.first[:sequences] + 1 - self._tables.origin[slots]
        row_slots = slots.unsqueeze(1).expand_as(rows).flatten()
        output = (first.unsqueeze(1) + inside).flatten()
        tokens, maxima = self._draw(buffers.logits.index_select(0, rows.flatten()), row_slots, output, random)
        drawn = tokens.view_as(rows)
        accepted = sampling.accept_equal(self._state.drafts[slots], drawn, lengths - 1)
        unused = place > accepted.unsqueeze(1)
        return Drawn(
            tokens=drawn.masked_fill(unused, NO_TOKEN),
            emitted=accepted + 1,
            finite=(maxima.isfinite().view_as(rows) | unused).all(1),
            logprobs=None,
            top_logprobs=None,
            top_tokens=None,
        )

    def _advance(self, slots: Tensor, first: Tensor, drawn: Drawn) -> None:
        """Write the slots of decoding sequences."""
        state, history = self._state, self._state.history[slots]
        recent = torch.cat((history, state.token[slots].unsqueeze(1), drawn.tokens), dim=1)
        width = torch.arange(history.shape[1], device=slots.device)
        newest = drawn.tokens.gather(1, (drawn.emitted - 1).unsqueeze(1)).squeeze(1)
        state.position[slots] = first + drawn.emitted
        state.history[slots] = recent.gather(1, drawn.emitted.unsqueeze(1) + width)
        state.token[slots] = newest

    def draft(self, slots: Tensor, position: Tensor, count: int, random: bool) -> None:
        state = self._state
        block = self._model.draft(state.token[slots], position - 1, slots, self._caches)
        previous, guesses, odds = state.token[slots], [], []
        output = position + 1 - self._tables.origin[slots]
        for place in range(count):
            logits = block.logits(place, previous)
            odds.append(block.acceptance(place, previous, logits))
            previous, _ = self._draw(logits, slots, output + place, random)
            guesses.append(previous)
        state.drafts[slots] = torch.stack(guesses, 1)
        state.confidence[slots] = torch.stack(odds, 1).to(state.confidence.dtype)

    def _draw(self, logits: Tensor, slots: Tensor, output: Tensor, random: bool) -> tuple[Tensor, Tensor]:
        """Tokens and maxima of rows."""
        tokens, maxima = sampling.likeliest(logits)
        if not random:
            return tokens, maxima
        tables = self._tables
        temperature = tables.temperature[slots].to(logits.dtype)
        warm = temperature > 0
        scaled = logits / torch.where(warm, temperature, 1).unsqueeze(1)
        keys = sampling.random_keys(tables.seed[slots], tables.choice[slots], output, _TARGET)
        return torch.where(warm, sampling.gumbel_argmax(scaled, keys), tokens), maxima
