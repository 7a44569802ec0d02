"""DeepSeek-V4.1 behind the engine's `Runner` interface.

Every call enqueues one piece of work on the device's compute stream and returns. The piece owns its plan;
what it shares with other pieces (caches, slots, tables) only the stream's order protects, so nothing outside
that stream may touch them.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections import deque

import numpy as np
import torch
from torch import Tensor

from stepahead.devices.device import Device, Ticket

from ..runner import HISTORY, ModelFacts, Runner, RunnerShape, SamplePlan, StepPlan, StepResult
from .batch import Batch
from .caches import CacheShape, backtracking, copy_state_, stored_block_bytes, stored_state_bytes
from .choosing import Chooser, Drawn, ForwardResult
from .config import ModelConfig
from .host_arrays import to_device
from .model import Model
from .numerics import Numerics
from .prompt_scores import score_rows
from .rows import BLOCK_TOKENS
from .sampling_slots import SamplingSlots
from .slots import allocate_slots
from .step_input import LayoutTensors, build_step_batch, place_layout


def model_facts(config: ModelConfig, numerics: Numerics) -> ModelFacts:
    """What the engine must know before caches exist."""
    return ModelFacts(
        vocab_size=config.vocab_size,
        eos_token_ids=(config.eos_token_id,),
        max_positions=config.max_position_embeddings,
        block_tokens=BLOCK_TOKENS,
        block_bytes=stored_block_bytes(config, numerics),
        state_bytes=stored_state_bytes(config, numerics),
        draft_tokens=config.dspark_block_size if config.num_nextn_predict_layers else 0,
        backtracking=backtracking(config),
        hit_margin=1,
    )


class V41Runner(Runner):
    """One model, its caches, and the state of its sequences on one device."""

    def __init__(self, model: Model, facts: ModelFacts, shape: RunnerShape, device: Device) -> None:
        self.facts, self.shape = facts, shape
        self._model, self._device = model, device
        block = max(model.config.dspark_block_size, 1)
        self._caches = model.new_caches(
            CacheShape(
                blocks=shape.blocks,
                state_slots=shape.state_slots,
                max_rows=max(shape.max_rows, shape.sequence_slots * block),
            )
        )
        self._state = allocate_slots(shape, model.numerics.wide, model.device)
        self._tables = SamplingSlots(shape, facts.vocab_size, model.device)
        self._chooser = Chooser(model, shape, self._state, self._tables)
        self._placed: LayoutTensors | None = None
        self._prepared: deque[tuple[StepPlan, LayoutTensors, Batch]] = deque()
        self._forwarded: deque[tuple[StepPlan, ForwardResult]] = deque()
        self._sampled: deque[tuple[StepPlan, ForwardResult, Drawn]] = deque()
        self._results: dict[int, StepResult] = {}
        self._tickets: dict[Ticket, int] = {}

    def launch_forward(self, plan: StepPlan) -> None:
        stream = self._device.compute
        stream.enqueue(lambda: self._fix_up(plan), f"fixups:{plan.step}")
        stream.enqueue(self._forward, f"forward:{plan.step}")

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        stream = self._device.compute
        stream.enqueue(lambda: self._sample(plan), f"sample:{plan.step}")
        stream.enqueue(self._draft, f"draft:{plan.step}")
        ticket = self._device.watch(stream.record(), get_running_loop())
        self._tickets[ticket] = plan.step
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        step = self._tickets.pop(ticket)
        if ticket.error is not None:
            raise ticket.error
        return self._results.pop(step)

    def close(self) -> None:
        self._tickets.clear()
        self._results.clear()
        self._prepared.clear()
        self._forwarded.clear()
        self._sampled.clear()

    # Work on the compute stream: on another thread where the device has one. A step is four pieces, so that a
    # trace tells them apart; each hands on to the next by a queue.

    @torch.inference_mode()
    def _fix_up(self, plan: StepPlan) -> None:
        self._copy_states(plan.state_copies)
        self._update_tables(plan.table_updates)
        placed = self._place(plan)
        self._prepared.append((plan, placed, build_step_batch(plan, placed, self._state)))

    @torch.inference_mode()
    def _forward(self) -> None:
        plan, placed, batch = self._prepared.popleft()
        output = self._model.forward(batch, self._caches, drafting=self.shape.draft_tokens > 0)
        tail, scores = self._chunk_tail(plan), None
        if plan.scored is not None and output.scored is not None:
            scores = score_rows(self._model, output.scored, plan.scored)
        result = ForwardResult(placed, output.logits, batch.rows.first_position, tail, scores)
        self._forwarded.append((plan, result))

    @torch.inference_mode()
    def _sample(self, plan: SamplePlan) -> None:
        step, forward = self._forwarded.popleft()
        self._tables.update(plan.updates, plan.edits)
        drawn = self._chooser.choose(forward, plan)
        self._chooser.advance(forward, drawn)
        self._sampled.append((step, forward, drawn))

    @torch.inference_mode()
    def _draft(self) -> None:
        step, forward, drawn = self._sampled.popleft()
        self._chooser.draft(forward.placed, self._caches)
        self._results[step.step] = self._result(step, forward, drawn)

    def _copy_states(self, copies: np.ndarray) -> None:
        """One after another: a save may read the slot that a later restore overwrites."""
        for source, destination in to_device(copies.astype(np.int64), self._model.device):
            copy_state_(self._model.config, self._caches, source.view(1), destination.view(1))

    def _update_tables(self, updates: np.ndarray) -> None:
        if updates.size:
            slot, column, block = to_device(updates.astype(np.int64), self._model.device).unbind(1)
            self._state.table[slot, column] = block

    def _place(self, plan: StepPlan) -> LayoutTensors:
        if self._placed is None or self._placed.layout is not plan.layout:
            self._placed = place_layout(plan.layout, self._model.device)
        return self._placed

    def _chunk_tail(self, plan: StepPlan) -> Tensor:
        """The last tokens of every chunk; a chunk shorter than that reaches back into its history."""
        layout, decode = plan.layout, plan.layout.decode_count
        lengths = layout.query_lengths[decode:]
        start = layout.row_starts[decode:] - layout.row_starts[decode:][:1]
        back = np.arange(-HISTORY, 0)
        inside = lengths[:, None] + back
        recent = plan.chunk_tokens[np.maximum(start[:, None] + inside, 0)] if lengths.size else inside
        older = np.take_along_axis(plan.chunk_history, np.clip(HISTORY + inside, 0, HISTORY - 1), axis=1)
        tail = np.where(inside >= 0, recent, older).astype(np.int64)
        return to_device(tail, self._model.device)

    def _result(self, plan: StepPlan, forward: ForwardResult, drawn: Drawn) -> StepResult:
        drafted = plan.layout.query_lengths - 1
        drafted[plan.layout.decode_count :] = 0
        return StepResult(
            step=plan.step,
            tokens=_int32(drawn.tokens),
            emitted=_int32(drawn.emitted),
            drafted=drafted,
            positions=_int32(forward.first),
            finite=drawn.finite.cpu().numpy(),
            logprobs=_float32(drawn.logprobs),
            top_logprobs=_float32(drawn.top_logprobs),
            top_tokens=_int32(drawn.top_tokens) if drawn.top_tokens is not None else None,
            confidences=self._confidences(forward.placed),
            prompt_scores=None if forward.prompt_scores is None else forward.prompt_scores.to_host(),
        )

    def _confidences(self, placed: LayoutTensors) -> np.ndarray | None:
        if self.shape.draft_tokens == 0:
            return None
        return _float32(self._state.confidence[placed.slots].sigmoid())


def _int32(tensor: Tensor) -> np.ndarray:
    return tensor.to(torch.int32).cpu().numpy()


def _float32(tensor: Tensor | None) -> np.ndarray | None:
    return None if tensor is None else tensor.to(torch.float32).cpu().numpy()
