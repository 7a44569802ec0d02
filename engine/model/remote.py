"""A runner whose real one lives in a device process, so that the host's work hides under a CPU's forward.

Plans are immutable and own their arrays, so crossing a process changes nothing for either side: the parent
encodes a plan into the ring and goes on, the child builds the same plan and calls the real runner on a device
that computes at once. The child reads S(n)'s request before F(n+1)'s, and answers it before it starts that:
the order of the one stream is the order of the ring.

Steady decode sends one layout object again and again; only the first time does it cross.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np

from stepahead.devices.cpu import CpuDevice
from stepahead.devices.device import Device, Ticket, WorkObserver
from stepahead.devices.process import DeviceProcess
from stepahead.devices.wire import RingSizes
from stepahead.engine.scheduling.cost_curve import CostCurve
from stepahead.engine.step_costs import CostsWanted, step_costs

from .array_codec import Array, Nested, decode, encode
from .runner import (
    BatchLayout,
    EditRows,
    ModelFacts,
    PromptScores,
    Runner,
    RunnerShape,
    SamplePlan,
    SamplingRows,
    ScoredRows,
    StepPlan,
    StepResult,
)

RunnerFactory = Callable[[RunnerShape, Device], Runner]
"""Picklable, not defined in `__main__`: a module's function, or `functools.partial` of one."""

_NESTED: Nested = {
    "layout": BatchLayout,
    "updates": SamplingRows,
    "edits": EditRows,
    "scored": ScoredRows,
    "prompt_scores": PromptScores,
}
_NO_LAYOUT = BatchLayout(
    slots=np.empty(0, dtype=np.int32),
    sequence_keys=np.empty(0, dtype=np.int64),
    admissions=np.empty(0, dtype=np.int64),
    query_lengths=np.empty(0, dtype=np.int32),
    row_starts=np.empty(0, dtype=np.int32),
    reach=np.empty(0, dtype=np.int32),
    samples=np.empty(0, dtype=np.bool_),
    decode_count=0,
    rows=0,
)
"""Stands in a plan for "the same layout as in the plan before": a plan has at least one row."""


class RemoteRunner(Runner):
    """Made by `open_remote`. Closing it ends the child, which is its device."""

    def __init__(self, process: DeviceProcess, facts: ModelFacts, shape: RunnerShape) -> None:
        self.facts, self.shape = facts, shape
        self._process = process
        self._layout: BatchLayout | None = None
        self._observer: WorkObserver | None = None

    def launch_forward(self, plan: StepPlan) -> None:
        known = plan.layout is self._layout
        self._layout = plan.layout
        sent = msgspec.structs.replace(plan, layout=_NO_LAYOUT) if known else plan
        self._process.cast("forward", encode(sent))

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        return self._process.call("sample", encode(plan))

    def collect(self, ticket: Ticket) -> StepResult:
        labels, times, *result = self._process.collect(ticket)
        if self._observer is not None:
            for label, (begin, end) in zip(_texts(labels), times.tolist(), strict=True):
                self._observer("compute", label, begin, end)
        return decode(result, StepResult, _NESTED)

    async def step_costs(self, wanted: CostsWanted) -> CostCurve | None:
        """What `engine.step_costs` finds in the child, where the steps run. Before the first launch."""
        ticket = self._process.call("costs", [_document(wanted)])
        await ticket
        return msgspec.json.decode(self._process.collect(ticket)[0].tobytes(), type=CostCurve | None)

    def time_work(self, observer: WorkObserver) -> None:
        """The child times its work anyway and sends it with the results: one clock serves all processes."""
        self._observer = observer

    def close(self) -> None:
        self._process.close()


async def open_remote(
    factory: RunnerFactory,
    shape: RunnerShape,
    *,
    threads: int | None = None,
    rings: RingSizes | None = None,
) -> RemoteRunner:
    """Starts a child that calls `factory(shape, device)`, and waits until it has.

    Raises `DeviceError` with the child's traceback as its cause. A caller that is cancelled leaves no child.
    """
    loop = asyncio.get_running_loop()
    sizes = ring_sizes(shape) if rings is None else rings
    process = DeviceProcess(RunnerService, (factory, shape), loop, threads=threads, rings=sizes)
    try:
        ticket = process.call("facts", [])
        await ticket
        facts = msgspec.json.decode(process.collect(ticket)[0].tobytes(), type=ModelFacts)
    except BaseException:
        process.close()
        raise
    return RemoteRunner(process, facts, shape)


def ring_sizes(shape: RunnerShape) -> RingSizes:
    """Room for three of the largest plans and results; memory that is never touched costs nothing."""
    slots, width = shape.sequence_slots, shape.draft_tokens + 1
    plan = shape.max_rows * 4 + slots * (shape.table_columns * 12 + shape.max_stop_ids * 4 + 256)
    lists = 64 * shape.max_listed_ids + 8 * shape.max_positions  # of one newcomer with every kind of edit
    plan += slots * lists
    result = slots * (256 + width * (16 + shape.max_logprobs * 8))
    plan += shape.max_rows * 8 + slots * 12  # of prompt rows that are scored
    result += shape.max_rows * (4 + shape.max_logprobs * 8)
    return RingSizes(requests=3 * _generous(plan), answers=3 * _generous(result))


def _generous(size: int) -> int:
    """Rounded up to a page, with one for headers and alignment."""
    return (size // 4096 + 2) * 4096


def _document(value: object) -> Array:
    return np.frombuffer(msgspec.json.encode(value), dtype=np.uint8)


def _texts(joined: Array) -> list[str]:
    text = joined.tobytes().decode()
    return text.split("\n") if text else []


class RunnerService:
    """What the child makes: the real runner, behind methods that take and return arrays."""

    def __init__(self, factory: RunnerFactory, shape: RunnerShape) -> None:
        self._device = CpuDevice(inline=True)
        self._loop = asyncio.new_event_loop()  # runners and tickets expect one
        self._runner = factory(shape, self._device)
        self._layout: BatchLayout | None = None
        self._labels: list[str] = []
        self._times: list[tuple[int, int]] = []  # of the work since the last result
        self._device.time_work(self._worked)

    def facts(self, parts: list[Array]) -> list[Array]:
        return [np.frombuffer(msgspec.json.encode(self._runner.facts), dtype=np.uint8)]

    def costs(self, parts: list[Array]) -> list[Array]:
        wanted = msgspec.json.decode(parts[0].tobytes(), type=CostsWanted)
        return [_document(step_costs(self._runner, wanted))]

    def forward(self, parts: list[Array]) -> None:
        self._loop.run_until_complete(self._forward(decode(parts, StepPlan, _NESTED)))

    def sample(self, parts: list[Array]) -> list[Array]:
        result = self._loop.run_until_complete(self._sample(decode(parts, SamplePlan, _NESTED)))
        times = np.array(self._times, dtype=np.int64).reshape(-1, 2)
        labels = np.frombuffer("\n".join(self._labels).encode(), dtype=np.uint8)
        self._labels.clear()
        self._times.clear()
        return [labels, times, *encode(result)]

    def _worked(self, stream: str, label: str, begin: int, end: int) -> None:
        self._labels.append(label)
        self._times.append((begin, end))

    async def _forward(self, plan: StepPlan) -> None:
        if plan.layout.rows == 0 and self._layout is not None:
            plan = msgspec.structs.replace(plan, layout=self._layout)
        self._layout = plan.layout
        self._runner.launch_forward(plan)

    async def _sample(self, plan: SamplePlan) -> StepResult:
        ticket = self._runner.launch_sample(plan)
        await ticket
        return self._runner.collect(ticket)
