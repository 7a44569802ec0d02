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
be overwritten by the next. The forward's are keyed by rows and, since a step reads as many entries as its
table is wide, by columns; the sampling's by sequences, by whether anybody draws at random and whether drafts
are wanted. Captured largest first, so that smaller ones fit into the memory of the largest.

Invariant: a step without fix-ups whose layout is its predecessor's object, and whose predecessor had none
either, is launched without any copy to the device; every other one with one copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec
import torch

from stepahead.devices.device import Device, Graph
from stepahead.devices.kernels.reference.sampling.tables import RANDOM

from ..runner import BatchLayout, CaptureReport, RunnerShape, SamplePlan, StepPlan, StepResult
from .caches import Caches
from .captured_inputs import DecodeBuffers, DecodeInput
from .captured_sampling import CapturedSampler, PlainSampler, TableSampler
from .captured_sizes import GraphSizes
from .choosing import ForwardResult
from .fix_ups import FixUpper
from .model import Model
from .results import ResultColumns
from .rows import BLOCK_TOKENS
from .sampling_slots import SamplingSlots
from .slots import SlotState
from .step_input import LayoutTensors


class CaptureKey(NamedTuple):
    """Which graphs serve a step."""

    rows: int
    columns: int
    sequences: int


class _Variant(NamedTuple):
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
        fix_upper: FixUpper,
    ) -> None:
        self._model, self._shape, self._device = model, shape, device
        self._state, self._tables, self._caches = state, tables, caches
        self._fix_upper = fix_upper
        self._drafts = shape.draft_tokens
        self._deals = shape.graphs_dealt and self._drafts > 0
        self.sizes = GraphSizes(shape.graph_sequences, self._drafts + 1, shape.table_columns)
        self._columns = ResultColumns(self._drafts + 1, self._drafts, -1)
        self._buffers = DecodeBuffers(
            self.sizes,
            model.config.vocab_size,
            self._columns.width,
            model.numerics.wide,
            model.device,
            device,
        )
        self._input = DecodeInput(self._buffers, state, tables.most_drafts, self.sizes, model.operations)
        sampler = TableSampler if model.operations.draws_from_tables else PlainSampler
        self._sampler: CapturedSampler = sampler(model, state, tables, caches)
        self._forwards: dict[tuple[int, int], Graph] = {}
        self._samplings: dict[tuple[int, _Variant], Graph] = {}

    def capture(self) -> CaptureReport:
        """Captures every size, on the opening thread. Raises the device's out-of-memory error.

        Until a layout is given every sequence is a placeholder, so trying sizes out writes to scratch only.
        """
        began, before, sizes = time.perf_counter(), self._device.memory(), self.sizes
        for rows in reversed(sizes.rows):
            for columns in reversed(sizes.columns):
                work, label = partial(self._run_forward, rows, columns), f"{rows} rows and {columns} blocks"
                self._forwards[rows, columns] = self._capture(work, f"the forward of {label}")
        for sequences in reversed(sizes.sequences):
            for variant in self._variants():
                work, label = partial(self._run_sampling, sequences, variant), f"{sequences} sequences"
                self._samplings[sequences, variant] = self._capture(work, f"the sampling of {label}")
        after = self._device.memory()
        held = (before.free - before.kept) - (after.free - after.kept)  # a pool is kept for its graphs alone
        return CaptureReport(
            graphs=len(self._forwards) + len(self._samplings),
            largest_rows=sizes.rows[-1],
            seconds=time.perf_counter() - began,
            device_bytes=max(held, 0),
        )

    def _capture(self, work: Callable[[], None], label: str) -> Graph:
        return self._device.capture(torch.inference_mode()(work), label)

    def _variants(self) -> list[_Variant]:
        if self._shape.rejection:
            return []  # what a rejected draft leaves is drawn eagerly
        drafts = (True, False) if self._drafts else (False,)
        randoms = (True, False) if self._sampler.varies else (True,)
        return [_Variant(random, drafting) for drafting in drafts for random in randoms]

    # Launching a step.

    def key_of(self, plan: StepPlan) -> CaptureKey | None:
        """The graphs of a step; None: it runs eagerly. Asks and changes nothing of the device."""
        layout, sizes = plan.layout, self.sizes
        if layout.decode_count < layout.slots.size or (plan.redeal and not self._deals):
            return None
        rows, sequences = sizes.rows_for(layout.rows), sizes.sequences_for(layout.slots.size)
        if rows is None or sequences is None:
            return None
        end = int(plan.first_positions.max()) + sizes.reach
        return CaptureKey(rows, sizes.columns_for(-(-end // BLOCK_TOKENS)), sequences)

    def fixes(self, plan: StepPlan) -> bool:
        """Whether its fix-ups find room in a captured step."""
        return self._buffers.room.holds(plan)

    def forward(self, plan: StepPlan, key: CaptureKey, *, fixed: bool = False) -> None:
        """`fixed`: the plan's fix-ups were made already."""
        self._buffers.give(plan, fixed=fixed)
        self._forwards[key.rows, key.columns].replay()

    def samples(self, plan: SamplePlan, layout: BatchLayout) -> bool:
        """Whether the step's sampling has a graph. Asked after the plan's updates were applied."""
        plain = plan.masks is None and plan.logprobs < 0 and not self._shape.rejection
        return plain and self._sampler.takes(layout.slots)

    def sample(self, plan: StepPlan, key: CaptureKey) -> None:
        slots = plan.layout.slots
        random = not self._sampler.varies or bool((self._tables.work[slots] & RANDOM).any())
        variant = _Variant(random, plan.drafts and self._drafts > 0)
        self._samplings[key.sequences, variant].replay()

    def collect(self, plan: StepPlan) -> StepResult:
        """On the loop's thread, once the step's mark was reached."""
        result = self._columns.unpack(plan.step, self._buffers.returned[: plan.layout.slots.size])
        return result if plan.drafts else msgspec.structs.replace(result, confidences=None)

    def forwarded(self, placed: LayoutTensors) -> ForwardResult:
        """What an eager sampling behind a captured forward needs. Real rows come first."""
        layout, buffers = placed.layout, self._buffers
        count = layout.slots.size
        return ForwardResult(
            placed=replace(placed, lengths=buffers.verified[:count]),
            logits=buffers.logits[: layout.rows],
            first=buffers.first[:count],
            chunk_tail=buffers.first.new_empty(0, self._state.history.shape[1]),
        )

    # What the graphs hold.

    def _run_forward(self, rows: int, columns: int) -> None:
        self._fix_upper.make_given(self._buffers.fix_ups)
        batch = self._input.batch(rows, columns, self._deals)
        output = self._model.forward(batch, self._caches, drafting=self._drafts > 0)
        self._buffers.logits[:rows].copy_(output.logits)

    def _run_sampling(self, sequences: int, variant: _Variant) -> None:
        buffers, sampler = self._buffers, self._sampler
        slots, first = buffers.slots[:sequences], buffers.first[:sequences]
        drawn = sampler.sample(buffers, sequences, self.sizes.reach, variant.random)
        if variant.drafts:
            sampler.draft(slots, first + drawn.emitted, self._drafts, variant.random)
        odds = self._state.confidence[slots] if self._drafts else None
        drafted = buffers.verified[:sequences] - 1
        packed = self._columns.pack(drawn, drafted, first, odds)
        buffers.results[:sequences].copy_(packed, non_blocking=True)
