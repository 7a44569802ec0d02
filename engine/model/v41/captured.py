"""Decode steps as CUDA graphs: a step is two replays, and the host launches it in microseconds.

A decode step of the model is some two thousand small kernels. Launched one by one they take the host longer
than the device; recorded once and replayed they take one call. Two graphs and not one, because the plan of
the sampling comes a step later than the forward's: fix-ups and forward; then draws, verification, advance,
drafts and the packing of the result.

A strategy beside the eager path inside one runner, and not a runner of its own: prompts and mixed steps run
between captured ones on the same slots and caches, and a sampling that wants edits, filters or
log-probabilities runs eagerly behind a captured forward. Rejected: capturing those too (a graph per
combination, each of which reads lists whose widths change).

Graphs read and write fixed buffers only (`captured_inputs.py`), so what a graph leaves in the shared pool may
be overwritten by the next. They are keyed by size and, since a step reads as many entries as its table is
wide, the forward's by columns too; the sampling's by whether anybody draws at random and whether drafts are
wanted. Captured largest first, so that smaller ones fit into the memory of the largest.

Invariant: a step whose layout is its predecessor's object is launched without any copy to the device.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec
import torch

from stepahead.devices.device import Device, Graph

from ..runner import BatchLayout, CaptureReport, RunnerShape, SamplePlan, StepPlan, StepResult
from .caches import Caches
from .captured_inputs import DecodeBuffers, decode_batch
from .captured_sampling import PlainSampler
from .captured_sizes import GraphSize, GraphSizes
from .choosing import ForwardResult
from .model import Model
from .results import ResultColumns
from .rows import BLOCK_TOKENS
from .sampling_slots import PROCESSED, RANDOM, SamplingSlots
from .slots import SlotState
from .step_input import LayoutTensors


@dataclass(frozen=True)
class _Variant:
    """What a sampling graph is fixed to besides its size."""

    random: bool  # somebody may draw at random
    drafts: bool  # the next step will verify some


class CapturedDecode:
    """The graphs of one runner. Methods run on the compute stream unless they say otherwise."""

    def __init__(
        self,
        model: Model,
        shape: RunnerShape,
        device: Device,
        state: SlotState,
        tables: SamplingSlots,
        caches: Caches,
    ) -> None:
        self._model, self._shape, self._device = model, shape, device
        self._state, self._tables, self._caches = state, tables, caches
        reach = shape.draft_tokens + 1
        self.sizes = GraphSizes(shape.graph_sequences, reach, shape.table_columns, dealt=shape.graphs_dealt)
        self._columns = ResultColumns(reach, shape.draft_tokens, -1)
        self._buffers = DecodeBuffers(
            self.sizes.steps[-1].rows,
            self.sizes.most_sequences,
            model.config.vocab_size,
            self._columns.width,
            model.numerics.wide,
            model.device,
            device,
        )
        self._sampler = PlainSampler(model, state, tables, caches)
        self._forwards: dict[tuple[GraphSize, int], Graph] = {}
        self._samplings: dict[tuple[GraphSize, _Variant], Graph] = {}
        self._given: BatchLayout | None = None

    def capture(self) -> CaptureReport:
        """Captures every size, on the opening thread. Raises the device's out-of-memory error."""
        began, before = time.perf_counter(), self._device.memory().free
        for size in reversed(self.sizes.steps):
            with self._device.placing():
                self._buffers.give_placeholders(size, self.sizes.reach)
            for columns in reversed(self.sizes.columns):
                self._forwards[size, columns] = self._capture(
                    partial(self._run_forward, size, columns),
                    f"the forward of {size.rows} rows and {columns} blocks",
                )
            for variant in self._variants():
                self._samplings[size, variant] = self._capture(
                    partial(self._run_sampling, size, variant),
                    f"the sampling of {size.rows} rows",
                )
        return CaptureReport(
            graphs=len(self._forwards) + len(self._samplings),
            largest_rows=self.sizes.steps[-1].rows,
            seconds=time.perf_counter() - began,
            device_bytes=max(before - self._device.memory().free, 0),
        )

    def _capture(self, work: Callable[[], None], label: str) -> Graph:
        return self._device.capture(torch.inference_mode()(work), label)

    def _variants(self) -> list[_Variant]:
        drafts = (True, False) if self._shape.draft_tokens else (False,)
        return [_Variant(random, drafting) for drafting in drafts for random in (True, False)]

    # Launching a step.

    def size_of(self, plan: StepPlan) -> GraphSize | None:
        """The graph size of a step; None: it runs eagerly. Asks and changes nothing of the device."""
        layout = plan.layout
        if layout.decode_count < layout.slots.size or not layout.rows or plan.redeal:
            return None
        return self.sizes.choose(layout.slots.size, layout.rows)

    def forward(self, plan: StepPlan, size: GraphSize) -> None:
        if plan.layout is not self._given:
            self._buffers.give(plan.layout, size, self.sizes.reach)
            self._given = plan.layout
        reach = int((plan.first_positions + plan.layout.reach).max())
        columns = self.sizes.choose_columns(-(-reach // BLOCK_TOKENS))
        self._forwards[size, columns].replay()

    def samples(self, plan: SamplePlan, layout: BatchLayout) -> bool:
        """Whether the step's sampling is plain. Asked after the plan's updates were applied."""
        if plan.masks is not None or plan.logprobs >= 0:
            return False
        return not (self._tables.work[layout.slots] & ~(RANDOM | PROCESSED)).any()

    def sample(self, plan: StepPlan, size: GraphSize) -> None:
        random = bool((self._tables.work[plan.layout.slots] & RANDOM).any())
        drafts = plan.drafts and self._shape.draft_tokens > 0
        self._samplings[size, _Variant(random, drafts)].replay()
        self._buffers.take_results(plan.layout.slots.size)

    def collect(self, plan: StepPlan) -> StepResult:
        """On the loop's thread, once the step's mark was reached."""
        result = self._columns.unpack(plan.step, self._buffers.returned[: plan.layout.slots.size])
        return result if plan.drafts else msgspec.structs.replace(result, confidences=None)

    def forwarded(self, placed: LayoutTensors) -> ForwardResult:
        """What an eager sampling behind a captured forward needs. Real rows come first."""
        layout, buffers = placed.layout, self._buffers
        no_tail = buffers.first.new_empty(0, self._state.history.shape[1])
        return ForwardResult(
            placed, buffers.logits[: layout.rows], buffers.first[: layout.slots.size], no_tail
        )

    # What the graphs hold.

    def _run_forward(self, size: GraphSize, columns: int) -> None:
        buffers = self._buffers
        batch = decode_batch(
            buffers.slots(size), buffers.lengths(size), size, columns, self.sizes.reach, self._state
        )
        output = self._model.forward(batch, self._caches, drafting=self._shape.draft_tokens > 0)
        buffers.logits[: size.rows].copy_(output.logits)
        buffers.first[: size.sequences].copy_(batch.rows.first_position)

    def _run_sampling(self, size: GraphSize, variant: _Variant) -> None:
        buffers, state, sampler = self._buffers, self._state, self._sampler
        slots, first = buffers.slots(size), buffers.first[: size.sequences]
        drawn = sampler.choose(buffers, size, self.sizes.reach, variant.random)
        sampler.advance(slots, first, drawn)
        if variant.drafts:
            sampler.draft(slots, first + drawn.emitted, self._shape.draft_tokens, variant.random)
        odds = state.confidence[slots] if self._shape.draft_tokens else None
        drafted = buffers.lengths(size) - 1
        buffers.results[: size.sequences].copy_(self._columns.pack(drawn, drafted, first, odds))
