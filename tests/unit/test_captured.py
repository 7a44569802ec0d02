"""Captured decode steps give what eager ones give: over random schedules, paddings, splits and samplings.

On a device whose graphs run their work again (`tests/device/replaying.py`), which is faithful exactly as long
as that work reads fixed buffers and asks for no value; the second is checked operation by operation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from stepahead.devices.cpu import CpuDevice
from stepahead.devices.device import Device
from stepahead.devices.kernels.operations import REFERENCE, Operations
from stepahead.engine.model.hashed import HashedModel
from stepahead.engine.model.runner import StepPlan
from stepahead.engine.model.step_trials import decode_step
from stepahead.engine.model.v41.caches import state_rings
from stepahead.engine.model.v41.dealing import deal, deal_on_device, survivals
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import exact
from stepahead.engine.model.v41.runner import V41Runner, model_facts
from stepahead.engine.model.v41.weights import load_weights
from stepahead.engine.types import Request
from tests.device.replaying import ReplayingDevice
from tests.fidelity.configurations import small_config
from tests.fidelity.fast_path import NamedTensors
from tests.fidelity.random_weights import random_weights

from .hashed_driver import HandDriver, request, shape_for
from .test_no_host_sync import ForbidValueReads

PLANNER = HashedModel(vocab_size=64, block_tokens=128, draft_tokens=5)
"""Only its sizes matter: the driver plans for it, and the real model runs."""


class TableOperations(Operations):
    """The reference, sampling as a GPU's operations do."""

    draws_from_tables = True


@cache
def model(operations: Operations = REFERENCE) -> Model:
    config, numerics = small_config(), exact(torch.float32)
    weights = load_weights(config, NamedTensors(random_weights(config)), numerics, torch.device("cpu"))
    return Model(config, weights, numerics, operations=operations)


def requests(kind: str) -> list[Request]:
    """Four requests; `kind` chooses how they sample."""
    params: dict[str, list[dict[str, Any]]] = {
        "greedy": [{}],
        "random": [{"temperature": 0.9}, {"temperature": 1.3}],
        "mixed": [{}, {"temperature": 0.8}],
        "some filtered": [{}, {"temperature": 0.8, "top_k": 7, "top_p": 0.9}, {"temperature": 1.0}],
        "logprobs": [{"logprobs": 2}, {"temperature": 0.7, "logprobs": 0}],
        "edited": [{"temperature": 0.9}, {"min_output": 6, "end_ids": (3, 4)}],
    }
    chosen = params[kind]
    prompts = [[(7 * key + 3 * i) % 60 + 3 for i in range(3 + 9 * key)] for key in range(4)]
    return [
        request(key, prompt, max_output=9, seed=key, **chosen[key % len(chosen)])
        for key, prompt in enumerate(prompts)
    ]


class Driver(HandDriver):
    """Plans as its base does, for the real model, and deals rows at random steps."""

    def __init__(
        self,
        device: Device,
        made: list[Request],
        *,
        seed: int,
        graphs: int,
        dealt: bool,
        operations: Operations,
    ) -> None:
        super().__init__(PLANNER, CpuDevice(inline=True), made, seed=seed)
        sizes = {"graph_sequences": graphs, "graphs_dealt": True, "draft_tokens": 5}
        shape = shape_for(PLANNER, **sizes)
        facts = model_facts(model().config, model().numerics)
        self.runner = self.real = V41Runner(model(operations), facts, shape, device)
        self.real.capture()
        self._dealt = dealt

    def _plan(self) -> StepPlan | None:
        plan = super()._plan()
        if plan is None:
            return None
        reach = plan.layout.query_lengths.copy()
        reach[: plan.layout.decode_count] = 6
        layout = msgspec.structs.replace(plan.layout, reach=reach)
        for sequence in self.running:
            for row in range(layout.decode_count):
                if layout.slots[row] == sequence.slot:
                    sequence.ahead += 6 - int(layout.query_lengths[row])
        deals = self._dealt and self.random.random() < 0.7
        drafts = self.random.random() < 0.9
        return msgspec.structs.replace(plan, layout=layout, redeal=deals, drafts=drafts)


Texts = dict[int, list[int]]


def said(
    device: Device,
    kind: str,
    *,
    seed: int = 1,
    graphs: int = 4,
    dealt: bool = False,
    operations: Operations = REFERENCE,
) -> Texts:
    async def run() -> Texts:
        driver = Driver(device, requests(kind), seed=seed, graphs=graphs, dealt=dealt, operations=operations)
        try:
            return await driver.run()
        finally:
            driver.runner.close()
            device.close()

    return asyncio.run(run())


@cache
def eager(kind: str) -> Texts:
    """On a schedule and splits of its own: a text depends on neither."""
    return said(CpuDevice(inline=True), kind, seed=7)


@pytest.mark.parametrize(
    "kind",
    [
        "mixed",
        "some filtered",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("greedy", "random", "logprobs", "edited")),
    ],
)
def test_captured_steps_say_what_eager_ones_say(kind: str) -> None:
    device = ReplayingDevice()
    assert said(device, kind) == eager(kind)
    assert device.replays > 5


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4))])
def test_dealing_and_padding_do_not_matter(seed: int) -> None:
    assert said(ReplayingDevice(), "mixed", seed=seed, dealt=True) == eager("mixed")


@pytest.mark.parametrize("kind", ["edited", pytest.param("some filtered", marks=pytest.mark.slow)])
def test_sampling_from_tables_is_captured_whoever_wants_what(kind: str) -> None:
    device = ReplayingDevice()
    assert said(device, kind, dealt=True, operations=TableOperations()) == eager(kind)
    steps = device.replays
    assert steps % 2 == 0  # no forward without its sampling


def test_steps_beyond_the_largest_run_eagerly() -> None:
    device = ReplayingDevice()
    assert said(device, "mixed", graphs=1) == eager("mixed")
    assert device.replays > 0


def test_a_thread_of_its_own_changes_nothing() -> None:
    assert said(ReplayingDevice(inline=False), "mixed", graphs=2, dealt=True) == eager("mixed")


def test_what_is_captured_asks_for_no_value() -> None:
    """What a real capture would refuse."""
    shape = shape_for(PLANNER, graph_sequences=2, graphs_dealt=True, draft_tokens=5)
    facts = model_facts(model().config, model().numerics)
    runner = V41Runner(model(), facts, shape, ReplayingDevice())
    with ForbidValueReads():
        runner.capture()
    assert runner.captured is not None
    assert runner.captured.graphs == 2 * 4 + len({1, 2, 4, 6, 8, 12})


def opened(sequences: int = 2) -> V41Runner:
    shape = shape_for(PLANNER, graph_sequences=sequences, graphs_dealt=True, draft_tokens=5)
    runner = V41Runner(model(), model_facts(model().config, model().numerics), shape, ReplayingDevice())
    runner.capture()
    return runner


def with_fix_ups(
    plan: StepPlan, copies: Sequence[Sequence[int]] = (), entries: Sequence[Sequence[int]] = ()
) -> StepPlan:
    return msgspec.structs.replace(
        plan,
        state_copies=np.array(copies, dtype=np.int32).reshape(-1, 2),
        table_updates=np.array(entries, dtype=np.int32).reshape(-1, 3),
    )


def test_a_steady_step_copies_nothing_to_the_device() -> None:
    """What is copied: another layout object, another will to deal, fix-ups, and after those that there are
    none."""
    runner = opened()
    graphs = runner._graphs
    assert graphs is not None
    plan, _ = decode_step(runner.shape, 2, 12, drafts=True)
    other, _ = decode_step(runner.shape, 2, 12, drafts=True)
    dealt = msgspec.structs.replace(plan, redeal=True)
    some = with_fix_ups(plan, entries=[[1, 0, 3]])
    copies = list[bool]()
    for step in (plan, plan, dealt, plan, plan, some, some, plan, plan, other):
        key, turn = graphs.key_of(step), graphs._buffers._turn
        assert key is not None
        graphs.forward(step, key)
        copies.append(graphs._buffers._turn != turn)
    assert copies == [True, False, True, True, False, True, True, True, False, True]


LIVE, KEPT = 3, 7
"""Neither in the steps below: a sequence's slot that sits them out, and snapshots from here on."""

FIX_UPS: dict[str, tuple[list[list[int]], list[list[int]], bool]] = {
    "none": ([], [], True),
    "a save": ([[1, KEPT]], [], True),
    "a slot saved, then restored": ([[LIVE, KEPT], [KEPT + 1, LIVE]], [[LIVE, 0, 5], [LIVE, 1, 4]], True),
    "one copy needs another": ([[LIVE, KEPT], [KEPT, KEPT + 1]], [[LIVE, 1, 5]], False),
    "more copies than there is room": ([[LIVE, KEPT + i] for i in range(3)], [[LIVE, 1, 5]], False),
    "more entries than there is room": (
        [[LIVE, KEPT]],
        [[LIVE + i // 2, i % 2, 1 + i] for i in range(5)],
        False,
    ),
}


@pytest.mark.parametrize("case", FIX_UPS)
@pytest.mark.parametrize("eager", [False, True])
@torch.inference_mode()
def test_fix_ups_come_before_the_forward_and_once(case: str, eager: bool) -> None:
    copies, entries, inside = FIX_UPS[case]
    runner = opened()
    graphs = runner._graphs
    assert graphs is not None
    runner._graphs = None if eager else graphs
    generator = torch.Generator().manual_seed(0)
    rings = state_rings(model().config, runner._caches)
    for ring in rings:
        ring.copy_(torch.randn(ring.shape, generator=generator))
    expected, table = [ring.clone() for ring in rings], runner._state.table.clone()
    for source, destination in copies:
        for ring in expected:
            ring[destination] = ring[source]
    for slot, column, block in entries:
        table[slot, column] = block
    plan, _ = decode_step(runner.shape, 2, 12, drafts=True)
    fixed = with_fix_ups(plan, copies, entries)
    assert graphs.fixes(fixed) == inside
    idle = list(range(3, rings[0].shape[0]))
    for step in (fixed, plan):  # the second one must not make them again
        runner.launch_forward(step)
        assert torch.equal(runner._state.table, table)
        for ring, wanted in zip(rings, expected, strict=True):
            assert torch.equal(ring[idle], wanted[idle])
        for tensor in (*rings, *expected):
            tensor[LIVE] = 7.0


@torch.inference_mode()
def test_a_step_reads_the_table_it_was_given() -> None:
    """And the state restored for it: logits are those of an eager step."""
    logits = []
    for eager in (False, True):
        runner = opened()
        generator = torch.Generator().manual_seed(0)
        for pool in (*state_rings(model().config, runner._caches), *runner._caches.entries.values()):
            pool.copy_(torch.randn(pool.shape, generator=generator))
        runner._state.position[1:3] = 140
        runner._graphs = None if eager else runner._graphs
        plan, _ = decode_step(runner.shape, 2, 12, drafts=True)
        plan = msgspec.structs.replace(plan, first_positions=plan.first_positions + 140)
        entries = [[slot, column, 2 * slot + column] for slot in (1, 2) for column in (0, 1)]
        runner.launch_forward(with_fix_ups(plan, [[KEPT, 1]], entries))
        graphs = runner._graphs
        logits.append(
            graphs._buffers.logits[:12].clone() if graphs else runner._forwarded.popleft()[1].logits
        )
    assert torch.equal(*logits)


def test_dealing_without_the_host_is_dealing_with_it() -> None:
    generator = torch.Generator().manual_seed(0)
    for count in range(1, 9):
        odds = torch.randn(count, 5, generator=generator).round(decimals=1)  # ties
        most = torch.randint(0, 6, (count,), generator=generator)
        caps = int(most.sum())
        spare = int(torch.randint(0, caps + 1, (1,), generator=generator))
        lengths = torch.ones(count + 3, dtype=torch.int64)
        lengths[0] += spare  # any split of the same total
        slots = torch.tensor([*range(1, count + 1), 0, 0, 0])
        padded = torch.cat((odds, torch.full((3, 5), 9.0)))
        dealt = deal_on_device(padded, torch.cat((most, torch.full((3,), 5))), slots, lengths)
        assert dealt[:count].tolist() == deal(survivals(odds), most, spare).tolist()
        assert dealt[count:].tolist() == [1, 1, 1]
