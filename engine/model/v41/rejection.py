"""Verification by rejection sampling: as many drafts accepted as any method can, in exchange for a promise.

Coupled draws (`choosing.py`) give a text that does not depend on drafts; here it may. What is kept is that
every random number is a hash of what it decides, by absolute output position: the text depends on which
positions had drafts, and on nothing else. Drafts are drawn with noise of their own, keyed by their place in
the window too: a position that is guessed again gets another guess, or else the choice of how many to verify,
which has seen the first, would favour some. What they were drawn from stays on the device until they are
verified. Only sequences that draw at random take this path; a greedy one accepts what equals the argmax.

A sequence that returns after a preemption would find its next position without drafts. Its newest token is
therefore drawn again, by force (`SamplingRows.forced`), and the drafts behind it are those it had.

Invariant: `_guessed[slot, place]` is what `drafts[slot, place]` was drawn from, where it was drawn at random.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from stepahead.devices.kernels.reference import sampling

from ..runner import RunnerShape
from .choosing import Chooser, RowGrid, Settled
from .host_arrays import to_device
from .model import Model
from .processing import DrawRows
from .sampling_slots import PROCESSED, RANDOM, SamplingSlots
from .slots import SlotState

_TARGET, _ACCEPT, _RESIDUAL, _DRAFT = 0, 1, 2, 3  # as in sampling/seeds.py; drafts add their place


def chooser_for(shape: RunnerShape, model: Model, state: SlotState, tables: SamplingSlots) -> Chooser:
    """The one that the shape's acceptance asks for."""
    return (RejectionChooser if shape.rejection else Chooser)(model, shape, state, tables)


class RejectionChooser(Chooser):
    """A chooser whose random sequences are verified by rejection."""

    def __init__(self, model: Model, shape: RunnerShape, state: SlotState, tables: SamplingSlots) -> None:
        super().__init__(model, shape, state, tables)
        size = (shape.sequence_slots + 1, shape.draft_tokens, model.config.vocab_size)
        self._guessed = torch.zeros(size, dtype=torch.float32, device=model.device)

    def _settle(self, logits: Tensor, grid: RowGrid, alternatives: int) -> Settled:
        layout = grid.forward.placed.layout
        host_slots = layout.slots[layout.samples]
        random = np.flatnonzero(self._tables.work[host_slots] & RANDOM)
        if random.size == 0:
            settled = super()._settle(logits, grid, alternatives)
        else:
            settled = self._settle_rest(logits, grid, alternatives)
            self._settle_random(logits, grid, settled, random, host_slots[random], alternatives)
        self._force(grid, settled)
        return settled

    def _settle_rest(self, logits: Tensor, grid: RowGrid, alternatives: int) -> Settled:
        """All sequences but those that draw at random, of which nothing is decided."""
        rest = np.flatnonzero(self._tables.work[grid.wanted.host_slots] & RANDOM == 0)
        if rest.size:
            only = RowGrid(grid.forward, grid.wanted.only(rest), grid.rows, grid.row_count)
            return super()._settle(logits, only, alternatives)
        tokens = grid.rows.new_zeros(logits.shape[0])
        return Settled(tokens, tokens.to(torch.bool), tokens.new_zeros(grid.rows.shape[0]), [])

    def _settle_random(
        self,
        logits: Tensor,
        grid: RowGrid,
        settled: Settled,
        random: np.ndarray,
        host_slots: np.ndarray,
        alternatives: int,
    ) -> None:
        """Write the decision of these sequences into `settled`."""
        owner = to_device(random, logits.device)
        rows, count, slots = grid.rows[owner], grid.row_count[owner], grid.slots[owner]
        drafts = self._state.drafts[slots]
        places = torch.arange(drafts.shape[1], device=owner.device)
        accepted = torch.zeros_like(owner)
        if drafts.shape[1]:
            count_of_places = drafts.shape[1]
            every = self._places(
                grid,
                owner.repeat_interleave(count_of_places),
                places.repeat(owner.shape[0]),
                np.repeat(host_slots, count_of_places),
            )
            known = drafts.clamp(min=0)
            target = self._processor.probability_of(logits, every, known.flatten()).view(drafts.shape)
            guess = self._guessed[slots.unsqueeze(1), places, known]
            keys = self._processor.keys(every, _ACCEPT).view(drafts.shape)
            accepted = sampling.accept_likely(target, guess, drafts, count - 1, keys)
        last, finite = self._draw_last(logits, grid, owner, accepted, host_slots)
        place = torch.arange(rows.shape[1], device=owner.device)
        drawn = torch.cat((drafts, last.unsqueeze(1)), dim=1)
        drawn = torch.where(place < accepted.unsqueeze(1), drawn, last.unsqueeze(1))
        settled.tokens[rows] = drawn
        settled.finite[rows] = finite.unsqueeze(1).expand_as(rows)
        settled.accepted[owner] = accepted
        if alternatives >= 0:
            self._report(logits, grid, settled, alternatives)

    def _draw_last(
        self, logits: Tensor, grid: RowGrid, owner: Tensor, accepted: Tensor, host_slots: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """The token behind the accepted drafts: the target's own, or what a rejected draft left."""
        rows = self._places(grid, owner, accepted, host_slots)
        target = self._processor.probabilities(logits, rows)
        keys = self._processor.keys(rows, _TARGET)
        scores = target.log()
        if self._shape.draft_tokens:
            refused = accepted < grid.row_count[owner] - 1
            place = accepted.clamp(max=self._shape.draft_tokens - 1)
            absent = ~refused | (self._state.drafts[rows.slots, place] < 0)
            guess = self._guessed[rows.slots, place].masked_fill(absent.unsqueeze(1), 0)
            scores = sampling.residual(target, guess)
            keys = torch.where(refused, self._processor.keys(rows, _RESIDUAL), keys)
        return sampling.gumbel_argmax(scores, keys), target[:, 0].isfinite()

    def _places(self, grid: RowGrid, owner: Tensor, place: Tensor, host_slots: np.ndarray) -> DrawRows:
        return self._rows_at(grid.forward, grid.rows, grid.row_count, owner, place, host_slots)

    def _report(self, logits: Tensor, grid: RowGrid, settled: Settled, alternatives: int) -> None:
        """Of rows drawn at random whose sequences asked for processed log-probabilities."""
        tables, wanted = self._tables, grid.wanted
        work = tables.work[wanted.host_slots]
        asked = (work & RANDOM > 0) & (work & PROCESSED > 0) & (tables.logprobs[wanted.host_slots] >= 0)
        if asked.any():
            rows = wanted.only(np.flatnonzero(asked))
            tokens = settled.tokens[rows.numbers]
            settled.reports.append(self._processor.report_random(logits, rows, tokens, alternatives))

    def _force(self, grid: RowGrid, settled: Settled) -> None:
        """Prompts that end in a token known already: see the module's text."""
        layout = grid.forward.placed.layout
        prompts = layout.slots[layout.decode_count :][layout.samples[layout.decode_count :]]
        returning = np.flatnonzero(self._tables.forced[prompts] >= 0)
        if returning.size:
            device = settled.tokens.device
            owner = to_device(layout.decode_count + returning, device)
            tokens = to_device(self._tables.forced[prompts[returning]], device, torch.int64)
            settled.tokens[grid.rows[owner]] = tokens.unsqueeze(1).expand(-1, grid.rows.shape[1])

    def _guess(self, logits: Tensor, rows: DrawRows, place: int) -> Tensor:
        random = self._tables.work[rows.host_slots] & RANDOM > 0
        if not random.any():
            return super()._guess(logits, rows, place)
        tokens = torch.empty_like(rows.slots)
        if not random.all():
            rest = np.flatnonzero(~random)
            tokens[to_device(rest, tokens.device)] = super()._guess(logits, rows.only(rest), place)
        chosen = np.flatnonzero(random)
        own = rows.only(chosen)
        guess = self._processor.probabilities(logits, own)
        self._guessed[own.slots, place] = guess
        drawn = sampling.gumbel_argmax(guess.log(), self._processor.keys(own, _DRAFT + place))
        tokens[to_device(chosen, tokens.device)] = drawn
        return tokens
