"""The memory of a step is measured before caches take the rest."""

from __future__ import annotations

import msgspec
import numpy as np

from stepahead.devices.device import Capabilities, MemoryInfo, Work
from stepahead.engine.config import EngineConfig
from stepahead.engine.model.opening import BUILT_IN, describe, numerics_for, open_sized_runner
from stepahead.engine.model.runner import RunnerShape, SamplePlan, StepPlan
from stepahead.engine.model.v41 import rehearsal
from stepahead.engine.sizing import runner_shape
from tests.device.replaying import ReplayingDevice

FREE, NEEDED = 1 << 29, 1 << 20
CONFIG = EngineConfig(max_sequences=2, max_step_rows=40, max_context=200, graph_sequences=1, draft_tokens=0)


class MeasuringDevice(ReplayingDevice):
    """Says that every piece of work needs the same."""

    def __init__(self) -> None:
        super().__init__(memory=MemoryInfo(total=2 * FREE, free=FREE))
        self.measured = 0

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, measures_memory=True)

    def bytes_needed(self, work: Work) -> int:
        work()
        self.measured += 1
        return NEEDED


def test_caches_get_what_both_extremes_and_their_graphs_leave() -> None:
    described = describe(BUILT_IN, numerics_for("cpu"))
    asked: list[int] = []

    def shape_for(free: int) -> RunnerShape:
        asked.append(free)
        return runner_shape(CONFIG, described.facts, free)

    device = MeasuringDevice()
    runner = open_sized_runner(described, shape_for, device)
    assert device.measured == 2
    assert asked == [FREE, FREE - 2 * NEEDED]  # a decode step has memory of its own in the graphs' pool
    assert (runner.captured is not None) == bool(device.captured)
    runner.close()


def test_the_extremes_fill_a_step_and_look_back_as_far_as_a_table_reaches() -> None:
    described = describe(BUILT_IN, numerics_for("cpu"))
    shape = runner_shape(CONFIG, described.facts, FREE)
    plans: list[StepPlan] = []

    def run(plan: StepPlan, sample: SamplePlan) -> None:
        assert sample.step == plan.step
        plans.append(plan)

    needs = rehearsal.measure(run, shape, MeasuringDevice())
    assert needs.reserve(graphs=False) == NEEDED
    decode, prompt = plans
    assert decode.layout.decode_count == shape.sequence_slots
    assert prompt.layout.decode_count == 0
    assert prompt.layout.rows == shape.max_rows
    for plan in plans:
        ends = plan.first_positions + plan.layout.reach
        assert ends.max() == shape.max_positions
        assert np.all(plan.layout.slots >= 1)
