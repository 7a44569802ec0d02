"""Sampling of one step: draw at every row, accept drafts that agree, advance the slots, guess again.

Every row draws with noise keyed by its own output position, whether or not a draft stands there. A draft is
accepted exactly when it is what the target drew, so the emitted text is the one a run without drafts would
have drawn, token for token, greedy or not; drafts drawn with the same noise make that likely.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepahead.devices.kernels.reference import sampling

from ..runner import NO_TOKEN, RunnerShape, SamplePlan
from .caches import Caches
from .model import Model
from .slots import SamplingSlots, SlotState
from .step_input import LayoutTensors

PURPOSE_TARGET = 0


@dataclass(frozen=True)
class ForwardResult:
    """What the sampling of a step needs of its forward."""

    placed: LayoutTensors
    logits: Tensor  # [logit rows, vocab], wide
    first: Tensor  # [sequences] true first positions
    chunk_tail: Tensor  # [prompts, HISTORY] the last tokens of each chunk


@dataclass(frozen=True)
class Drawn:
    """A step's decision over its sequences; see `StepResult` for the meaning of each field."""

    tokens: Tensor  # [sequences, K]
    emitted: Tensor  # [sequences]
    finite: Tensor  # [sequences]
    logprobs: Tensor | None  # [sequences, K]
    top_logprobs: Tensor | None
    top_tokens: Tensor | None


class Chooser:
    """Draws, verifies and drafts for one model."""

    def __init__(self, model: Model, shape: RunnerShape, state: SlotState, tables: SamplingSlots) -> None:
        self._model, self._shape, self._state, self._tables = model, shape, state, tables

    def choose(self, forward: ForwardResult, plan: SamplePlan) -> Drawn:
        """Draw at every wanted row and accept drafts. Writes nothing."""
        placed = forward.placed
        rows, row_count = self._row_grid(placed)
        row_slots, row_positions = self._rows(forward, rows, row_count)
        logits = self._admissible(forward.logits, plan, placed, row_slots, row_positions)
        drawn_rows = self._draw(logits, placed, row_slots, row_positions, plan.all_greedy)
        finite_rows = logits.isfinite().any(-1) & ~logits.isnan().any(-1)
        drawn = drawn_rows[rows]
        slots = placed.slots[placed.sampling]
        drafts = self._state.drafts[slots]
        accepted = sampling.accept_equal(drafts, drawn, row_count - 1)
        place = torch.arange(rows.shape[1], device=rows.device)
        kept = place <= accepted.unsqueeze(1)
        total = placed.slots.shape[0]
        return Drawn(
            tokens=_spread(drawn.masked_fill(~kept, NO_TOKEN), placed.sampling, total, NO_TOKEN),
            emitted=_spread(accepted + 1, placed.sampling, total, 0),
            finite=_spread((finite_rows[rows] | ~kept).all(1), placed.sampling, total, True),
            **self._logprobs(forward.logits, drawn_rows, rows, kept, plan, placed),
        )

    def advance(self, forward: ForwardResult, drawn: Drawn) -> None:
        """Write the slots: where each sequence goes on, with what token, after which history."""
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

    def draft(self, placed: LayoutTensors, caches: Caches) -> None:
        """Guess what follows the newest tokens, with the noise the target will draw with."""
        count = self._shape.draft_tokens
        if count == 0 or placed.sampling.shape[0] == 0:
            return
        state, slots = self._state, placed.slots[placed.sampling]
        newest, position = state.token[slots], state.position[slots]
        block = self._model.draft(newest, position - 1, slots, caches)
        previous = newest
        for place in range(count):
            logits = block.logits(place, previous)
            state.confidence[slots, place] = block.confidence(place, previous)
            previous = self._draw(logits, placed, slots, position + place, False)
            state.drafts[slots, place] = previous

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

    def _rows(self, forward: ForwardResult, rows: Tensor, row_count: Tensor) -> tuple[Tensor, Tensor]:
        """Slot and position of every wanted row."""
        placed = forward.placed
        total = forward.logits.shape[0]
        number = torch.arange(total, device=rows.device)
        owner = torch.searchsorted(row_count.cumsum(0), number, right=True)
        sequence = placed.sampling[owner]
        is_decode = sequence < placed.layout.decode_count
        inside = torch.where(is_decode, number - rows[owner, 0], placed.lengths[sequence] - 1)
        return placed.slots[sequence], forward.first[sequence] + inside

    def _admissible(
        self, logits: Tensor, plan: SamplePlan, placed: LayoutTensors, slots: Tensor, positions: Tensor
    ) -> Tensor:
        """Logits without the tokens that must not come; the raw ones stay for log-probabilities."""
        layout, tables = placed.layout, self._tables
        if tables.any_ban(layout.slots):
            output = positions + 1 - tables.origin[slots]
            logits = sampling.ban_(logits.clone(), tables.end_ids[slots], output < tables.min_output[slots])
        if plan.masks is not None:
            bits = torch.from_numpy(plan.masks.view("int32")).to(logits.device)[placed.logit_rows]
            logits = sampling.forbid_(logits.clone(), bits)
        return logits

    def _draw(
        self, logits: Tensor, placed: LayoutTensors, slots: Tensor, positions: Tensor, all_greedy: bool
    ) -> Tensor:
        """One token per row. `positions` are those of the rows; a row draws the token after it."""
        likeliest = logits.argmax(-1)
        if all_greedy:
            return likeliest
        tables = self._tables
        temperature = tables.temperature[slots].to(logits.dtype)
        scaled = logits / torch.where(temperature > 0, temperature, 1).unsqueeze(1)
        if tables.any_filter(placed.layout.slots):
            scaled = sampling.keep_best(scaled, tables.top_k[slots], tables.top_p[slots])
        output = positions + 1 - tables.origin[slots]
        keys = sampling.random_keys(tables.seed[slots], tables.choice[slots], output, PURPOSE_TARGET)
        return torch.where(temperature > 0, sampling.gumbel_argmax(scaled, keys), likeliest)

    def _logprobs(
        self,
        logits: Tensor,
        drawn: Tensor,
        rows: Tensor,
        kept: Tensor,
        plan: SamplePlan,
        placed: LayoutTensors,
    ) -> dict[str, Tensor | None]:
        """Of the model's own distribution, before temperature, filters and bans."""
        if plan.logprobs < 0:
            return {"logprobs": None, "top_logprobs": None, "top_tokens": None}
        total = placed.slots.shape[0]
        all_logprobs = logits.log_softmax(-1)
        chosen = all_logprobs.gather(1, drawn.unsqueeze(1)).squeeze(1)[rows].masked_fill(~kept, 0)
        best = all_logprobs.topk(plan.logprobs, dim=-1)
        unused = ~kept.unsqueeze(-1)
        return {
            "logprobs": _spread(chosen, placed.sampling, total, 0),
            "top_logprobs": _spread(best.values[rows].masked_fill(unused, 0), placed.sampling, total, 0),
            "top_tokens": _spread(
                best.indices[rows].masked_fill(unused, NO_TOKEN), placed.sampling, total, NO_TOKEN
            ),
        }


def _spread(values: Tensor, index: Tensor, total: int, fill: float) -> Tensor:
    """Rows of the sampling sequences among all sequences."""
    spread = torch.full((total, *values.shape[1:]), fill, dtype=values.dtype, device=values.device)
    return spread.index_copy_(0, index, values)
