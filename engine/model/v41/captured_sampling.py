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
from .captured_sizes import GraphSize
from .choosing import Drawn
from .model import Model
from .sampling_slots import SamplingSlots
from .slots import SlotState

_TARGET = 0  # the purpose of every draw, see `processing.py`


class PlainSampler:
    """Draws, verifies, advances and drafts for the sequences in the buffers."""

    def __init__(self, model: Model, state: SlotState, tables: SamplingSlots, caches: Caches) -> None:
        self._model, self._state, self._tables, self._caches = model, state, tables, caches

    def choose(self, buffers: DecodeBuffers, size: GraphSize, reach: int, random: bool) -> Drawn:
        """Draw at every row and accept drafts. Writes nothing."""
        slots, lengths, first = buffers.slots(size), buffers.lengths(size), buffers.first[: size.sequences]
        ends = lengths.cumsum(0)
        starts, number = ends - lengths, torch.arange(size.rows, device=slots.device)
        sequence = torch.searchsorted(ends, number, right=True)
        row_slots = slots[sequence]
        output = first[sequence] + number - starts[sequence] + 1 - self._tables.origin[row_slots]
        tokens, maxima = self._draw(buffers.logits[: size.rows], row_slots, output, random)
        place = torch.arange(reach, device=slots.device)
        last = (lengths - 1).clamp(min=0)
        rows = (starts.unsqueeze(1) + torch.minimum(place, last.unsqueeze(1))).clamp(max=size.rows - 1)
        drawn = tokens[rows]
        accepted = sampling.accept_equal(self._state.drafts[slots], drawn, last)
        unused = place > accepted.unsqueeze(1)
        return Drawn(
            tokens=drawn.masked_fill(unused, NO_TOKEN),
            emitted=accepted + 1,
            finite=(maxima.isfinite()[rows] | unused).all(1),
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
            odds.append(block.acceptance(place, previous))
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
