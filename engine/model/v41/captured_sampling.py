"""Sampling of a captured decode step: greedy or by temperature, some of the sequences being placeholders.

The same decisions as `choosing.Chooser` makes for rows without edits, filters or log-probabilities, written
over tensors of fixed size alone: no list of who wants what, since that would be a shape. A graph that may
draw at random makes noise for all rows and takes the likeliest token where the temperature is 0.

Invariant: a real sequence gets bit for bit what `Chooser` would give it from the same logits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stepahead.devices.kernels.reference import sampling

from ..runner import NO_TOKEN
from .caches import Caches
from .captured_inputs import DecodeBuffers
from .choosing import Drawn
from .model import Model
from .sampling_slots import SamplingSlots
from .slots import SlotState

_TARGET = 0  # the purpose of every draw, see `processing.py`


class PlainSampler:
    """Draws, verifies, advances and drafts for the sequences in the buffers."""

    def __init__(self, model: Model, state: SlotState, tables: SamplingSlots, caches: Caches) -> None:
        self._model, self._state, self._tables, self._caches = model, state, tables, caches

    def choose(self, buffers: DecodeBuffers, sequences: int, reach: int, random: bool) -> Drawn:
        """Draw at every place a row may stand, and accept drafts. Writes nothing.

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

    def advance(self, slots: Tensor, first: Tensor, drawn: Drawn) -> None:
        """Write the slots of decoding sequences."""
        state, history = self._state, self._state.history[slots]
        recent = torch.cat((history, state.token[slots].unsqueeze(1), drawn.tokens), dim=1)
        width = torch.arange(history.shape[1], device=slots.device)
        newest = drawn.tokens.gather(1, (drawn.emitted - 1).unsqueeze(1)).squeeze(1)
        state.position[slots] = first + drawn.emitted
        state.history[slots] = recent.gather(1, drawn.emitted.unsqueeze(1) + width)
        state.token[slots] = newest

    def draft(self, slots: Tensor, position: Tensor, count: int, random: bool) -> None:
        """Guess what follows the newest tokens, each of which will stand at `position`."""
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
