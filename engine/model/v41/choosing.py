"""Sampling of one step: draw at every row, accept drafts that agree, advance the slots, guess again.

Every row draws with noise keyed by its own output position, whether or not a draft stands there. A draft is
accepted exactly when it is what the target drew, so the emitted text is the one a run without drafts would
have drawn, token for token, greedy or not; drafts drawn with the same noise make that likely.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepahead.devices.kernels.reference import sampling
from stepahead.devices.kernels.reference.sampling.tables import SampledSequences

from ..runner import NO_TOKEN, RunnerShape, SamplePlan
from .caches import Caches
from .fused_sampling import FusedSampler
from .host_arrays import to_device
from .model import Model
from .processing import DrawRows, Processor, Report, report
from .prompt_scores import DeviceScores
from .sampling_slots import PENALTY, WORDS, SamplingSlots
from .slots import SlotState
from .step_input import LayoutTensors


@dataclass(frozen=True)
class ForwardResult:
    """What the sampling of a step needs of its forward."""

    placed: LayoutTensors
    logits: Tensor  # [logit rows, vocab], wide
    first: Tensor  # [sequences] true first positions
    chunk_tail: Tensor  # [prompts, HISTORY] the last tokens of each chunk
    prompt_scores: DeviceScores | None = None


@dataclass(frozen=True)
class RowGrid:
    """Which logits belong to which place of which sampling sequence."""

    forward: ForwardResult
    wanted: DrawRows  # every place that may be drawn at
    rows: Tensor  # [sampling sequences, K] into the logits, clipped at a sequence's last
    row_count: Tensor  # [sampling sequences]

    @property
    def slots(self) -> Tensor:
        placed = self.forward.placed
        return placed.slots[placed.sampling]


@dataclass(frozen=True)
class Settled:
    """Tokens and sanity by row of the logits; drafts accepted of every sampling sequence."""

    tokens: Tensor  # [logit rows]
    finite: Tensor  # [logit rows]
    accepted: Tensor  # [sampling sequences]
    reports: list[Report]  # processed log-probabilities


@dataclass(frozen=True)
class Drawn:
    """A step's decision over its sequences; see `StepResult` for the meaning of each field."""

    tokens: Tensor  # [sequences, K]
    emitted: Tensor  # [sequences]
    finite: Tensor  # [sequences]
    logprobs: Tensor | None  # [sequences, K]
    top_logprobs: Tensor | None
    top_tokens: Tensor | None
    settled: bool = False  # the slots are written already


class Chooser:
    """Draws, verifies and drafts for one model."""

    def __init__(self, model: Model, shape: RunnerShape, state: SlotState, tables: SamplingSlots) -> None:
        self._model, self._shape, self._state, self._tables = model, shape, state, tables
        self._processor = Processor(tables)
        self._fused: FusedSampler | None = None
        if model.operations.draws_from_tables and not shape.rejection:
            self._fused = FusedSampler(model, state, tables)
            tables.widen(shape.max_listed_ids)

    def choose(self, forward: ForwardResult, plan: SamplePlan) -> Drawn:
        """Draw at every wanted row and accept drafts. Writes nothing, unless that is one launch with it."""
        placed = forward.placed
        if self._fused is not None:
            return _choose_fused(self._fused, forward, plan)
        rows, row_count = self._row_grid(placed)
        wanted = self._wanted(forward, rows, row_count)
        logits = forward.logits
        if plan.masks is not None:
            bits = to_device(plan.masks.view("int32"), logits.device)[placed.logit_rows]
            logits = sampling.forbid_(logits.clone(), bits)
        grid = RowGrid(forward, wanted, rows, row_count)
        settled = self._settle(logits, grid, plan.logprobs)
        place = torch.arange(rows.shape[1], device=rows.device)
        kept = place <= settled.accepted.unsqueeze(1)
        tokens = settled.tokens[rows].masked_fill(~kept, NO_TOKEN)
        total = placed.slots.shape[0]
        return Drawn(
            tokens=_spread(tokens, placed.sampling, total, NO_TOKEN),
            emitted=_spread(settled.accepted + 1, placed.sampling, total, 0),
            finite=_spread((settled.finite[rows] | ~kept).all(1), placed.sampling, total, True),
            settled=False,
            **self._logprobs(grid, settled, kept, plan.logprobs),
        )

    def _settle(self, logits: Tensor, grid: RowGrid, alternatives: int) -> Settled:
        """Draw at every row and accept the drafts that are what was drawn."""
        draws = self._processor.draw(logits, grid.wanted, alternatives)
        tokens = draws.tokens.new_zeros(logits.shape[0])
        tokens[grid.wanted.numbers] = draws.tokens  # a clipped place repeats its last row, and its token
        finite = tokens.new_zeros(logits.shape[0], dtype=torch.bool)
        finite[grid.wanted.numbers] = draws.maxima.isfinite()
        drafts = self._state.drafts[grid.slots]
        accepted = sampling.accept_equal(drafts, tokens[grid.rows], grid.row_count - 1)
        return Settled(tokens, finite, accepted, draws.reports)

    def advance(self, forward: ForwardResult, drawn: Drawn) -> None:
        """Write the slots: where each sequence goes on, with what token, after which history."""
        if drawn.settled:
            return
        state, placed = self._state, forward.placed
        decode = placed.layout.decode_count
        slots = placed.slots
        moved = torch.cat((drawn.emitted[:decode], placed.lengths[decode:]))
        token = state.token[slots]
        newest = drawn.tokens.gather(1, (drawn.emitted - 1).clamp(min=0).unsqueeze(1)).squeeze(1)
        history = state.history[slots]
        recent = torch.cat((history, token.unsqueeze(1), drawn.tokens), dim=1)[:decode]
        width = torch.arange(history.shape[1], device=slots.device)
        decode_history = recent.gather(1, drawn.emitted[:decode].unsqueeze(1) + width)
        state.position[slots] = forward.first + moved
        state.token[slots] = torch.where(drawn.emitted > 0, newest, token)
        state.history[slots] = torch.cat((decode_history, forward.chunk_tail))
        self._count(placed, drawn)

    def _count(self, placed: LayoutTensors, drawn: Drawn) -> None:
        """Tell the tables of tokens seen what was emitted."""
        layout, seen = placed.layout, self._tables.seen
        work = self._tables.work[layout.slots] * layout.samples
        for bit in (PENALTY, WORDS):
            chosen = np.flatnonzero(work & bit)
            if chosen.size == 0:
                continue
            index = to_device(chosen, placed.slots.device)
            slots, tokens, emitted = placed.slots[index], drawn.tokens[index], drawn.emitted[index]
            if bit == PENALTY:
                seen.count(slots, layout.slots[chosen], tokens, emitted)
            else:
                seen.say(slots, tokens, emitted)

    def draft(self, placed: LayoutTensors, caches: Caches) -> None:
        """Guess what follows the newest tokens, with the noise the target will draw with."""
        count = self._shape.draft_tokens
        if count == 0 or placed.sampling.shape[0] == 0:
            return
        state, slots = self._state, placed.slots[placed.sampling]
        if self._fused is not None:
            self._fused.draft(slots, caches)
            return
        newest, position = state.token[slots], state.position[slots]
        block = self._model.draft(newest, position - 1, slots, caches)
        previous, guesses = newest, torch.full_like(state.drafts[slots], NO_TOKEN)
        numbers = torch.arange(slots.shape[0], device=slots.device)
        first = position + 1 - self._tables.origin[slots]
        host_slots = placed.layout.slots[placed.layout.samples]
        for place in range(count):
            logits = block.logits(place, previous)
            state.confidence[slots, place] = block.acceptance(place, previous, logits)
            rows = DrawRows(numbers, slots, first + place, guesses, host_slots)
            previous = self._guess(logits, rows, place)
            guesses[:, place] = previous
        state.drafts[slots] = guesses

    def _guess(self, logits: Tensor, rows: DrawRows, place: int) -> Tensor:
        """Draw drafts at one place of every sequence."""
        return self._processor.draw(logits, rows).tokens

    def _row_grid(self, placed: LayoutTensors) -> tuple[Tensor, Tensor]:
        """Per sampling sequence: its wanted rows `[sequences, K]`, clipped at the last, and how many."""
        layout = placed.layout
        decode = layout.decode_count
        decode_rows = placed.decode_place.shape[0]
        lengths = placed.lengths[:decode]
        prompts = placed.sampling.shape[0] - decode
        device = lengths.device
        starts = torch.cat((lengths.cumsum(0) - lengths, decode_rows + torch.arange(prompts, device=device)))
        counts = torch.cat((lengths, lengths.new_ones(prompts)))
        place = torch.arange(self._shape.draft_tokens + 1, device=device)
        return starts.unsqueeze(1) + torch.minimum(place, counts.unsqueeze(1) - 1), counts

    def _wanted(self, forward: ForwardResult, rows: Tensor, row_count: Tensor) -> DrawRows:
        """Every place of every decode and the last row of every prompt.

        A device may have dealt the rows among the decodes, so the host lists all places there can be; those
        beyond a sequence's last row repeat it.
        """
        placed, device = forward.placed, rows.device
        layout = placed.layout
        decode, places = layout.decode_count, rows.shape[1]
        host_slots = layout.slots[layout.samples]
        prompts = host_slots.size - decode
        sequence = np.concatenate((np.repeat(np.arange(decode), places), decode + np.arange(prompts)))
        place = np.concatenate((np.tile(np.arange(places), decode), np.zeros(prompts, dtype=np.int64)))
        return self._rows_at(
            forward,
            rows,
            row_count,
            to_device(sequence, device),
            to_device(place, device),
            host_slots[sequence],
        )

    def _rows_at(
        self,
        forward: ForwardResult,
        rows: Tensor,
        row_count: Tensor,
        owner: Tensor,
        place: Tensor,
        host_slots: npt.NDArray[np.int32],
    ) -> DrawRows:
        """Rows at a place of a sampling sequence each, with the drafts that stand before it."""
        placed = forward.placed
        inside = torch.minimum(place, row_count[owner] - 1)
        index = placed.sampling[owner]
        slots = placed.slots[index]
        last = torch.where(owner < placed.layout.decode_count, inside, placed.lengths[index] - 1)
        drafts = self._state.drafts[slots]
        beyond = torch.arange(drafts.shape[1], device=rows.device) >= inside.unsqueeze(1)
        return DrawRows(
            numbers=rows[owner, inside],
            slots=slots,
            output=forward.first[index] + last + 1 - self._tables.origin[slots],
            ahead=drafts.masked_fill(beyond, NO_TOKEN),
            host_slots=host_slots,
        )

    def _logprobs(
        self,
        grid: RowGrid,
        settled: Settled,
        kept: Tensor,
        alternatives: int,
    ) -> dict[str, Tensor | None]:
        """Of the rows of sequences that asked: of the model's own distribution, or as reported."""
        if alternatives < 0:
            return {"logprobs": None, "top_logprobs": None, "top_tokens": None}
        logits, placed, rows = grid.forward.logits, grid.forward.placed, grid.rows
        chosen = logits.new_zeros(logits.shape[0])
        top = logits.new_zeros(logits.shape[0], alternatives)
        top_ids = rows.new_full(top.shape, NO_TOKEN)
        tables, host_slots = self._tables, grid.wanted.host_slots
        asked = np.flatnonzero(tables.logprobs[host_slots] >= 0)
        numbers = grid.wanted.numbers[to_device(asked, rows.device)]
        own = report(logits.index_select(0, numbers), numbers, settled.tokens[numbers], alternatives)
        for made in (own, *settled.reports):  # what was processed replaces the model's own
            chosen[made.numbers], top[made.numbers], top_ids[made.numbers] = (
                made.chosen,
                made.top,
                made.top_ids,
            )
        total, unused = placed.slots.shape[0], ~kept
        more = unused.unsqueeze(-1)
        return {
            "logprobs": _spread(chosen[rows].masked_fill(unused, 0), placed.sampling, total, 0),
            "top_logprobs": _spread(top[rows].masked_fill(more, 0), placed.sampling, total, 0),
            "top_tokens": _spread(
                top_ids[rows].masked_fill(more, NO_TOKEN), placed.sampling, total, NO_TOKEN
            ),
        }


def _spread(values: Tensor, index: Tensor, total: int, fill: float) -> Tensor:
    """Rows of the sampling sequences among all sequences."""
    spread = torch.full((total, *values.shape[1:]), fill, dtype=values.dtype, device=values.device)
    return spread.index_copy_(0, index, values)


def _choose_fused(fused: FusedSampler, forward: ForwardResult, plan: SamplePlan) -> Drawn:
    placed, tail = forward.placed, forward.chunk_tail
    layout, index = placed.layout, placed.sampling
    decode, everybody = layout.decode_count, bool(layout.samples.all())
    slots, first, lengths = placed.slots, forward.first, placed.lengths
    if not everybody:
        others = to_device(np.flatnonzero(~layout.samples), index.device)
        fused.pass_by(slots[others], (first + lengths)[others], tail[others - decode])
        slots, first, lengths = slots[index], first[index], lengths[index]
        tail = tail[index[decode:] - decode]
    bits = None
    if plan.masks is not None:
        bits = to_device(plan.masks.view("int32"), index.device)[placed.logit_rows]
    sequences = SampledSequences(slots, first, lengths, decode)
    made = fused.sample(forward.logits, sequences, tail, alternatives=plan.logprobs, allowed_bits=bits)
    if everybody:
        return Drawn(*made, settled=True)
    total = placed.slots.shape[0]
    return Drawn(
        tokens=_spread(made.tokens, index, total, NO_TOKEN),
        emitted=_spread(made.emitted, index, total, 0),
        finite=_spread(made.finite, index, total, True),
        logprobs=None if made.logprobs is None else _spread(made.logprobs, index, total, 0),
        top_logprobs=None if made.top_logprobs is None else _spread(made.top_logprobs, index, total, 0),
        top_tokens=None if made.top_tokens is None else _spread(made.top_tokens, index, total, NO_TOKEN),
        settled=True,
    )
