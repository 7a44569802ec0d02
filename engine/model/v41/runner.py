"""DeepSeek-V4.1 behind the engine's `Runner` interface.

Every call enqueues pieces of work on the device's compute stream and returns. A piece owns its plan; what it
shares with other pieces (caches, slots, tables) only the stream's order protects, so nothing outside that
stream may touch them.

A step runs eagerly, or, where the device has graphs, decode steps as replays of captured ones
(`captured.py`): two strategies over the same slots and caches, chosen step by step.
"""

from __future__ import annotations

import time
from asyncio import get_running_loop
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from stepahead.devices.device import Device, Ticket

from ..runner import (
    HISTORY,
    ModelFacts,
    Runner,
    RunnerShape,
    SamplePlan,
    StepPlan,
    StepResult,
    StepTime,
)
from ..step_trials import decode_step
from .batch import Batch
from .caches import (
    CacheShape,
    backtracking,
    stored_block_bytes,
    stored_state_bytes,
)
from .captured import CapturedDecode, CaptureKey
from .choosing import Drawn, ForwardResult
from .config import ModelConfig
from .fix_ups import FixUpper
from .host_arrays import start_copy, to_device
from .model import Model
from .numerics import Numerics
from .prompt_scores import score_rows
from .rejection import chooser_for
from .results import ResultColumns
from .rows import BLOCK_TOKENS
from .sampling_slots import SamplingSlots
from .slots import allocate_slots
from .step_input import LayoutTensors, build_step_batch, place_layout, redealt

MOST_PLACED = 32
TRIALS = 3
"""Runs of a timed step; the first one may have to warm up."""


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
        self._fix_upper = FixUpper(model.config, self._caches, self._state, model.operations)
        self._tables = SamplingSlots(shape, facts.vocab_size, model.device)
        self._chooser = chooser_for(shape, model, self._state, self._tables)
        self._placed: dict[int, LayoutTensors] = {}  # by the identity of their layouts, which they hold
        self._prepared: deque[tuple[StepPlan, LayoutTensors, Batch]] = deque()
        self._forwarded: deque[tuple[StepPlan, ForwardResult]] = deque()
        self._sampled: deque[tuple[StepPlan, ForwardResult, Drawn]] = deque()
        self._replayed: deque[StepPlan] = deque()  # forwards that were replays, whose sampling is to come
        self._keys: deque[CaptureKey | None] = deque()  # of forwards launched
        self._results: dict[int, Callable[[], StepResult]] = {}
        self._tickets: dict[Ticket, int] = {}
        self._graphs: CapturedDecode | None = None

    def capture(self) -> None:
        """Captures decode steps, where the device has graphs and the shape wants them. While opening only."""
        if self.shape.graph_sequences == 0 or not self._device.capabilities.graphs:
            return
        self._graphs = CapturedDecode(
            self._model, self.shape, self._device, self._state, self._tables, self._caches, self._fix_upper
        )
        self.captured = self._graphs.capture()

    def run_now(self, plan: StepPlan, sample: SamplePlan) -> None:
        """A whole step on this thread, its result dropped; while opening only, inside `Device.placing`."""
        self._fix_up(plan)
        self._forward()
        self._sample(sample)
        self._draft()
        self._results.clear()

    def padded_rows(self) -> list[int]:
        return [] if self._graphs is None else self._graphs.sizes.rows

    @torch.inference_mode()
    def time_step(self, sequences: int, rows: int) -> StepTime | None:
        """The fastest of some runs, each waited for: what disturbs a step makes it longer."""
        with self._device.placing():
            self._timed(sequences, rows, drafts=self.shape.draft_tokens > 0)  # memory is touched, code loaded
            plain = min(self._timed(sequences, rows, drafts=False) for _ in range(TRIALS))
            whole = plain
            if self.shape.draft_tokens:
                whole = min(self._timed(sequences, rows, drafts=True) for _ in range(TRIALS))
            self._state.position[1:] = 0
        return StepTime(plain, max(whole - plain, 0.0))

    def _timed(self, sequences: int, rows: int, *, drafts: bool) -> float:
        plan, sample = decode_step(self.shape, sequences, rows, drafts=drafts)
        graphs = self._graphs
        key = None if graphs is None else graphs.key_of(plan)
        self._wait()
        began = time.perf_counter()
        if graphs is None or key is None:
            self.run_now(plan, sample)
        else:
            self._replay_forward(graphs, plan, key)
            self._replay_sample(graphs, sample, key)
            self._results.clear()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)

    def launch_forward(self, plan: StepPlan) -> None:
        stream, graphs = self._device.compute, self._graphs
        key = None if graphs is None else graphs.key_of(plan)
        self._keys.append(key)
        if graphs is None or key is None:
            stream.enqueue(lambda: self._fix_up(plan), f"fixups:{plan.step}")
            stream.enqueue(self._forward, f"forward:{plan.step}")
            return
        fixed = not graphs.fixes(plan)
        if fixed:
            stream.enqueue(lambda: self._make_fix_ups(plan), f"fixups:{plan.step}")
        stream.enqueue(lambda: self._replay_forward(graphs, plan, key, fixed=fixed), f"forward:{plan.step}")

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        stream, graphs, key = self._device.compute, self._graphs, self._keys.popleft()
        if graphs is None or key is None:
            stream.enqueue(lambda: self._sample(plan), f"sample:{plan.step}")
            stream.enqueue(self._draft, f"draft:{plan.step}")
        else:
            stream.enqueue(lambda: self._replay_sample(graphs, plan, key), f"sample:{plan.step}")
        ticket = self._device.watch(stream.record(), get_running_loop())
        self._tickets[ticket] = plan.step
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        step = self._tickets.pop(ticket)
        if ticket.error is not None:
            raise ticket.error
        return self._results.pop(step)()

    def close(self) -> None:
        self._tickets.clear()
        self._results.clear()
        self._prepared.clear()
        self._forwarded.clear()
        self._sampled.clear()
        self._replayed.clear()
        for name in (
            "_graphs",
            "_chooser",
            "_caches",
            "_fix_upper",
            "_state",
            "_tables",
            "_placed",
            "_model",
        ):
            self.__dict__.pop(name, None)  # whoever still holds the runner holds none of the device's memory

    # Work on the compute stream: on another thread where the device has one. A step is four pieces, so that a
    # trace tells them apart; each hands on to the next by a queue. A captured step is two, and whatever only
    # replays does without `inference_mode`, which takes the host as long as a replay.

    def _replay_forward(
        self, graphs: CapturedDecode, plan: StepPlan, key: CaptureKey, *, fixed: bool = False
    ) -> None:
        graphs.forward(plan, key, fixed=fixed)
        self._replayed.append(plan)

    def _replay_sample(self, graphs: CapturedDecode, plan: SamplePlan, key: CaptureKey) -> None:
        step = self._replayed.popleft()
        if plan.updates.slots.size:
            self._update_tables(plan)
        if graphs.samples(plan, step.layout):
            graphs.sample(step, key)
            self._results[step.step] = lambda: graphs.collect(step)
        else:
            self._sample_eagerly(graphs, step, plan)

    @torch.inference_mode()
    def _sample_eagerly(self, graphs: CapturedDecode, step: StepPlan, plan: SamplePlan) -> None:
        self._draw(step, graphs.forwarded(self._place(step)), plan)
        self._draft()

    @torch.inference_mode()
    def _update_tables(self, plan: SamplePlan) -> None:
        self._tables.update(plan.updates, plan.edits)

    @torch.inference_mode()
    def _make_fix_ups(self, plan: StepPlan) -> None:
        self._fix_upper.make(plan)

    @torch.inference_mode()
    def _fix_up(self, plan: StepPlan) -> None:
        self._fix_upper.make(plan)
        placed = self._place(plan)
        if plan.redeal:
            placed = redealt(placed, self._state, self._tables.most_drafts)
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
        self._update_tables(plan)
        self._draw(step, forward, plan)

    def _draw(self, step: StepPlan, forward: ForwardResult, plan: SamplePlan) -> None:
        drawn = self._chooser.choose(forward, plan)
        self._chooser.advance(forward, drawn)
        self._sampled.append((step, forward, drawn))

    @torch.inference_mode()
    def _draft(self) -> None:
        step, forward, drawn = self._sampled.popleft()
        if step.drafts:
            self._chooser.draft(forward.placed, self._caches)
        self._results[step.step] = self._start_result(step, forward, drawn)

    def _place(self, plan: StepPlan) -> LayoutTensors:
        """Layouts that differ in how many drafts they verify come again and again, in turns."""
        known = self._placed.get(id(plan.layout))
        if known is None or known.layout is not plan.layout:
            if len(self._placed) >= MOST_PLACED:
                self._placed.clear()
            known = self._placed[id(plan.layout)] = place_layout(plan.layout, self._model.device)
        return known

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

    def _start_result(self, plan: StepPlan, forward: ForwardResult, drawn: Drawn) -> Callable[[], StepResult]:
        """Enqueue the copies to the host; what is returned reads them, once they have arrived."""
        placed, drafts = forward.placed, self.shape.draft_tokens if plan.drafts else 0
        alternatives = -1 if drawn.top_logprobs is None else drawn.top_logprobs.shape[2]
        columns = ResultColumns(self.shape.draft_tokens + 1, drafts, alternatives)
        drafted = torch.zeros_like(placed.lengths)
        decode = plan.layout.decode_count
        drafted[:decode] = placed.lengths[:decode] - 1
        odds = self._state.confidence[placed.slots] if drafts else None
        rows = start_copy(columns.pack(drawn, drafted, forward.first, odds))
        scores = None if forward.prompt_scores is None else forward.prompt_scores.start_copy()

        def result() -> StepResult:
            made = columns.unpack(plan.step, rows.numpy())
            return made if scores is None else replace(made, prompt_scores=scores.to_host())

        return result
