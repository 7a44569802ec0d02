"""The hashed model says what its oracle says, however it is run, and something else if anything is off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from stepahead.devices.clock import run_virtual
from stepahead.devices.cpu import CpuDevice
from stepahead.devices.device import DeviceError
from stepahead.devices.simulated import SimulatedDevice
from stepahead.engine.model.hashed import HashedModel, HashedRunner, solo
from stepahead.engine.model.hashed.model import mix, mix_int
from stepahead.engine.model.hashed.slots import MisuseError
from stepahead.engine.model.runner import SamplePlan, StepPlan
from stepahead.engine.sampling.commit import FAILED, LENGTH, STOP
from stepahead.engine.types import Request

from .hashed_driver import HandDriver, int32, outputs, replaced, request, sampling_rows, shape_for

PARAMETERS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 5, "seed": 2**64 - 1},
    {"temperature": 1.5, "top_p": 0.6},
    {"temperature": 1.0, "top_k": 9, "top_p": 0.8, "min_output": 12, "end_ids": (3, 0, 40)},
    {"min_output": 12, "end_ids": tuple(range(4))},
]


def _requests(model: HashedModel, seed: int) -> list[Request]:
    chance = random.Random(seed)
    return [
        request(
            key,
            [chance.randrange(model.vocab_size) for _ in range(chance.randint(1, 60))],
            **params,
        )
        for key, params in enumerate(PARAMETERS, 1)
    ]


def _expected(model: HashedModel, requests: list[Request]) -> dict[int, list[int]]:
    """The oracle's; the driver ignores end ids, which the parameters ban until the last token."""
    return {r.key: list(solo(model, r).tokens) for r in requests}


def _run(model: HashedModel, requests: list[Request], **options: Any) -> dict[int, list[int]]:
    return run_virtual(outputs(model, CpuDevice(inline=True), requests, **options))


def test_mixing_integers_and_arrays_is_the_same() -> None:
    values = [0, 1, 2**63, 2**64 - 1, 12345678901234567]
    assert mix(np.array(values, dtype=np.uint64)).tolist() == [mix_int(value) for value in values]


@pytest.mark.parametrize("drafts", [0, 1, 4])
@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_any_schedule_gives_the_oracles_text(drafts: int, overlap: bool, seed: int) -> None:
    model = HashedModel(draft_tokens=drafts, draft_accuracy=0.6, window=3 + seed, vocab_size=50 + seed)
    requests = _requests(model, seed)
    assert _run(model, requests, seed=seed, overlap=overlap) == _expected(model, requests)


def test_a_device_with_latencies_gives_the_same() -> None:
    model = HashedModel(draft_tokens=2)
    requests = _requests(model, 1)

    async def simulated() -> dict[int, list[int]]:
        device = SimulatedDevice(asyncio.get_running_loop(), latency=lambda label: 1e-3)
        return await outputs(model, device, requests)

    assert run_virtual(simulated()) == _expected(model, requests)


@pytest.mark.parametrize(("accuracy", "low", "high"), [(0.0, 1.0, 1.1), (0.6, 1.5, 3.5), (1.0, 4.5, 5.0)])
def test_drafts_are_right_as_often_as_scripted(accuracy: float, low: float, high: float) -> None:
    model = HashedModel(draft_tokens=4, draft_accuracy=accuracy)
    requests = [request(1, [5, 6], max_output=100, temperature=1.0)]

    async def emitted() -> list[int]:
        driver = HandDriver(model, CpuDevice(inline=True), requests)
        driver.random.randint = lambda least, most: most  # type: ignore[method-assign]
        await driver.run()
        return [int(result.emitted[0]) for result in driver.results[1:]]

    counts = run_virtual(emitted())
    assert low <= sum(counts) / len(counts) <= high


def test_logprobs_are_those_of_the_oracle() -> None:
    model = HashedModel(draft_tokens=3)
    requests = [request(1, [9, 8, 7], logprobs=3, temperature=1.0), request(2, [1] * 30)]

    async def logprobs() -> list[float]:
        driver = HandDriver(model, CpuDevice(inline=True), requests)
        await driver.run()
        return driver.running[0].logprobs[:12]

    told = solo(model, requests[0])
    assert run_virtual(logprobs()) == list(told.logprobs)
    best, score = told.top[0][0]
    assert len(told.top[0]) == 3
    assert 0 <= best < model.vocab_size
    assert score <= 0.0


def test_a_token_without_finite_logits_fails_its_sequence_alone() -> None:
    model = HashedModel(nonfinite_rate=0.05, draft_tokens=2)
    requests = [request(key, [key, key + 1], max_output=30) for key in range(1, 7)]
    told = {r.key: solo(model, r) for r in requests}
    assert {one.finish for one in told.values()} == {FAILED, LENGTH}
    given = _run(model, requests)
    for key, one in told.items():
        assert tuple(given[key]) == one.tokens[: len(given[key])]
        assert one.finish == FAILED or len(given[key]) == 30


def test_the_oracle_stops_where_a_request_says() -> None:
    model = HashedModel(vocab_size=8)
    free = solo(model, request(1, [2, 3], max_output=40))
    assert (len(free.tokens), free.finish) == (40, LENGTH)
    stopped = solo(model, request(1, [2, 3], max_output=40, end_ids=(free.tokens[5],)))
    first = free.tokens.index(free.tokens[5])
    assert (stopped.tokens, stopped.finish) == (free.tokens[: first + 1], STOP)
    assert solo(model, request(1, [2, 3], max_output=0)).tokens == ()


def _wrong_block(plan: StepPlan) -> StepPlan:
    """Two columns swapped: the blocks are its own, the order is not."""
    updates = plan.table_updates.copy()
    updates[[0, 1], 2] = updates[[1, 0], 2]
    return replaced(plan, table_updates=updates)


def _own(plan: StepPlan, field: str, change: Callable[[Any], None]) -> StepPlan:
    values = getattr(plan, field).copy()
    change(values)
    return replaced(plan, **{field: values})


SPOILT: dict[str, Callable[[StepPlan], StepPlan]] = {
    "token": lambda plan: _own(plan, "chunk_tokens", lambda t: t.__setitem__(0, t[0] ^ 1)),
    "history": lambda plan: _own(plan, "chunk_history", lambda h: h.__setitem__((0, 2), 77)),
}


@pytest.mark.parametrize("what", sorted(SPOILT))
def test_a_plan_that_is_wrong_changes_the_text(what: str) -> None:
    model = HashedModel()
    requests = [request(1, list(range(1, 40)))]

    async def spoilt() -> dict[int, list[int]]:
        driver = HandDriver(model, CpuDevice(inline=True), requests)
        driver.spoil[1] = SPOILT[what]
        return await driver.run()

    assert run_virtual(spoilt()) != _expected(model, requests)


def _disturbed(disturb: Callable[[HashedRunner], None], after: int) -> bool:
    """Whether text changes when the device's memory is tampered with after so many steps."""
    model = HashedModel(draft_tokens=1)
    requests = [request(1, list(range(1, 40)), max_output=20)]

    async def run() -> dict[int, list[int]]:
        driver = HandDriver(model, CpuDevice(inline=True), requests, overlap=False)
        launch = driver.runner.launch_forward

        def tampering(plan: StepPlan) -> None:
            if plan.step == after:
                disturb(driver.runner)  # type: ignore[arg-type]
            launch(plan)

        driver.runner.launch_forward = tampering  # type: ignore[method-assign]
        return await driver.run()

    return run_virtual(run())[1] != _expected(model, requests)[1]


def _only_slot(runner: HashedRunner) -> int:
    return int(np.flatnonzero(runner._slots.table[:, 0])[0])


def _touch_block(runner: HashedRunner) -> None:
    slots = runner._slots
    slots.blocks[slots.table[_only_slot(runner), 0], 3] ^= np.uint64(1 << 63)


def _touch_table(runner: HashedRunner) -> None:
    table = runner._slots.table[_only_slot(runner)]
    table[0], table[1] = table[1], table[0]


def _touch_ring(runner: HashedRunner) -> None:
    slot = _only_slot(runner)
    last = int(runner._slots.position[slot]) - 1
    runner._slots.rings[slot, last % runner._model.ring] += np.uint64(1)


def _touch_position(runner: HashedRunner) -> None:
    runner._slots.position[_only_slot(runner)] -= 1


def _touch_history(runner: HashedRunner) -> None:
    runner._slots.history[_only_slot(runner), 0] += 1


def _touch_token(runner: HashedRunner) -> None:
    runner._slots.token[_only_slot(runner)] += 1


@pytest.mark.parametrize("disturb", [_touch_block, _touch_table, _touch_ring, _touch_history, _touch_token])
def test_any_wrong_bit_the_device_keeps_changes_the_text(disturb: Callable[[HashedRunner], None]) -> None:
    assert _disturbed(disturb, 10)
    assert not _disturbed(lambda runner: None, 10)


def test_a_position_the_plan_did_not_allow_for_is_refused() -> None:
    with pytest.raises(DeviceError, match="ahead of the device") as caught:
        _disturbed(lambda runner: [_touch_position(runner) for _ in range(3)] and None, 10)
    assert isinstance(caught.value.__cause__, MisuseError)


def test_entries_beyond_the_sequence_do_not_matter() -> None:
    """Slots and blocks are not cleared for a newcomer, so nothing may be read that it did not write."""

    def scribble(runner: HashedRunner) -> None:
        slots, slot = runner._slots, _only_slot(runner)
        position = int(slots.position[slot])
        block = runner._model.block_tokens
        slots.blocks[slots.table[slot, position // block], position % block :] = 99
        slots.rings[slot, position % runner._model.ring] = 99

    assert not _disturbed(scribble, 10)


def test_positions_without_blocks_are_refused() -> None:
    model = HashedModel()
    requests = [request(1, list(range(1, 40)))]

    async def without_blocks() -> None:
        driver = HandDriver(model, CpuDevice(inline=True), requests)
        driver.spoil[0] = lambda plan: replaced(plan, table_updates=plan.table_updates[1:])
        await driver.run()

    with pytest.raises(DeviceError, match="never received"):
        run_virtual(without_blocks())


def test_swapped_blocks_are_not_an_error_by_themselves() -> None:
    """Whose order they are in is only known to the table: the text is right if reads and writes agree."""
    model = HashedModel()
    requests = [request(1, list(range(1, 40)))]

    async def swapped() -> dict[int, list[int]]:
        driver = HandDriver(model, CpuDevice(inline=True), requests)
        driver.spoil[0] = _wrong_block
        return await driver.run()

    assert run_virtual(swapped()) == _expected(model, requests)


@pytest.mark.parametrize("kept_at", [8, 16])
@pytest.mark.parametrize("late", [0, 6, 8, 12])
def test_a_kept_window_resumes_a_prefix_until_it_is_overwritten(kept_at: int, late: int) -> None:
    """Chunk one fills blocks and a window, a copy of it lets another slot go on behind them.

    A copy made `late` rows later serves as long as the ring's reserve has not been used up.
    """
    model = HashedModel(backtracking=6)
    prompt = [3 + i for i in range(32)]
    told = list(solo(model, request(1, prompt, max_output=1)).tokens)
    shape = shape_for(model)

    async def resumed() -> list[int]:
        device = CpuDevice(inline=True)
        driver = HandDriver(model, device, [request(1, prompt)])
        runner = HashedRunner(model, shape, device)
        table = driver.tables[driver.running[0].slot]
        first = _chunk(driver, prompt, 0, 0, kept_at + late, slot=1, table=table)
        second = _chunk(driver, prompt, 1, kept_at, 32, slot=2, table=table, copies=[(1, 9), (9, 2)])
        for plan in (first, second):
            runner.launch_forward(plan)
            updates = sampling_rows([driver.running[0].request], plan.layout.slots.tolist())
            sampling = SamplePlan(step=plan.step, updates=updates, logprobs=-1, all_greedy=True)
            ticket = runner.launch_sample(sampling)
            await ticket
            result = runner.collect(ticket)
        device.close()
        return result.tokens[0, :1].tolist()

    assert (run_virtual(resumed()) == told) == (late <= model.backtracking)


def _chunk(
    driver: HandDriver,
    prompt: list[int],
    step: int,
    start: int,
    end: int,
    *,
    slot: int,
    table: list[int],
    copies: list[tuple[int, int]] | None = None,
) -> StepPlan:
    driver.running[0].slot, driver.running[0].sent = slot, start
    layout = driver._layout([], driver.running, [end - start])
    return StepPlan(
        step=step,
        layout=layout,
        first_positions=int32([start]),
        chunk_tokens=int32(prompt[start:end]),
        chunk_history=int32(([-1] * 3 + prompt[:start])[-3:], 3),
        chunk_ends=int32([len(prompt)]),
        table_updates=int32([(slot, column, block) for column, block in enumerate(table)], 3),
        state_copies=int32(copies or [], 2),
    )


class TestLaunchOrder:
    """F0 S0 F1 S1, and S1 only after S0 was collected."""

    @staticmethod
    def _prepared() -> tuple[HandDriver, StepPlan, StepPlan]:
        model = HashedModel()
        driver = HandDriver(model, CpuDevice(inline=True), [request(1, list(range(1, 30)))])
        driver.random.random = lambda: 0.0  # type: ignore[method-assign]
        first, second = driver._plan(), driver._plan()
        assert first is not None
        assert second is not None
        return driver, first, second

    def test_forwards_alternate_with_samplings(self) -> None:
        driver, first, second = self._prepared()
        with pytest.raises(MisuseError, match=r"F\(1\) is launched instead of F\(0\)"):
            driver.runner.launch_forward(second)
        driver.runner.launch_forward(first)
        with pytest.raises(MisuseError, match=r"F\(1\) is launched before S\(0\)"):
            driver.runner.launch_forward(second)

    def test_a_sampling_needs_its_forward(self) -> None:
        driver, first, _ = self._prepared()
        with pytest.raises(MisuseError, match="before its forward"):
            driver.runner.launch_sample(driver._sample_plan(first))

    async def test_a_sampling_needs_the_result_before_it(self) -> None:
        driver, first, second = self._prepared()
        driver.runner.launch_forward(first)
        ticket = driver.runner.launch_sample(driver._sample_plan(first))
        driver.runner.launch_forward(second)
        with pytest.raises(MisuseError, match=r"before S\(0\) is known"):
            driver.runner.launch_sample(driver._sample_plan(second))
        await ticket
        driver.runner.collect(ticket)
        await driver.runner.launch_sample(driver._sample_plan(second))
        driver.runner.close()

    def test_a_slot_may_be_in_a_step_once(self) -> None:
        driver, first, _ = self._prepared()
        layout = driver._layout([], driver.running * 2, [1, 1])
        with pytest.raises(MisuseError, match="twice"):
            driver.runner.launch_forward(replaced(first, layout=layout))


@pytest.mark.parametrize("accuracy", [0.0, 0.3, 0.7, 1.0])
def test_confidences_of_the_hashed_model_are_honest(accuracy: float) -> None:
    """Drafts are right as often as they say, and say different things."""
    model = HashedModel(draft_tokens=2, draft_accuracy=accuracy)
    digests = np.random.default_rng(0).integers(2**63, size=200_000).astype(np.uint64)
    chances = model.draft_chances(digests)
    right = model.draft_is_right(digests, chances)
    assert right.mean() == pytest.approx(accuracy, abs=0.01)
    assert ((chances >= 0) & (chances <= 1)).all()
    if 0 < accuracy < 1:
        for low in np.quantile(chances, [0.0, 0.25, 0.5, 0.75]):
            near = (chances >= low) & (chances < low + 0.1)
            assert right[near].mean() == pytest.approx(chances[near].mean(), abs=0.02)
        assert chances.std() > 0.1
