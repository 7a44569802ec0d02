"""A runner in a device process says what the same runner says here, and dies like a device."""

from __future__ import annotations

import functools
import os
import signal
from pathlib import Path

import pytest

from stepahead.devices.cpu import CpuDevice
from stepahead.devices.device import Device, DeviceError
from stepahead.engine.model.hashed import HashedModel, HashedRunner, solo
from stepahead.engine.model.remote import RemoteRunner, open_remote, ring_sizes
from stepahead.engine.model.runner import RunnerShape, StepTime
from stepahead.engine.step_costs import CostsWanted
from tests.unit.hashed_driver import HandDriver, request, shape_for

MODEL = HashedModel(draft_tokens=2)


def hashed(model: HashedModel, shape: RunnerShape, device: Device) -> HashedRunner:
    """A factory for the child, which imports this module for it."""
    return HashedRunner(model, shape, device)


class _Paced(HashedRunner):
    def time_step(self, sequences: int, rows: int) -> StepTime:
        return StepTime(float(rows), 0.5)


def paced(model: HashedModel, shape: RunnerShape, device: Device) -> HashedRunner:
    return _Paced(model, shape, device)


def fails(shape: RunnerShape, device: Device) -> HashedRunner:
    raise FileNotFoundError("weights")


async def _remote() -> RemoteRunner:
    return await open_remote(functools.partial(hashed, MODEL), shape_for(MODEL), threads=1)


async def test_it_says_what_a_local_runner_says() -> None:
    requests = [
        request(1, list(range(1, 50)), max_output=30, logprobs=2),
        request(2, [5], max_output=30, temperature=1.0),
    ]
    driver = HandDriver(MODEL, CpuDevice(inline=True), requests)
    driver.runner = runner = await _remote()
    assert runner.facts == MODEL.facts
    try:
        told = {r.key: list(solo(MODEL, r).tokens) for r in requests}
        assert await driver.run() == told
        assert driver.running[0].logprobs[:30] == list(solo(MODEL, requests[0]).logprobs)
    finally:
        runner.close()


async def test_steps_are_timed_and_kept_in_the_child(tmp_path: Path) -> None:
    wanted = CostsWanted(seconds=1.0, folder=str(tmp_path), key="k")
    for timed in (True, False):  # the second child cannot tell, and reads what the first one left
        runner = await open_remote(
            functools.partial(paced if timed else hashed, MODEL), shape_for(MODEL), threads=1
        )
        try:
            curve = await runner.step_costs(wanted)
        finally:
            runner.close()
        assert curve is not None
        assert (curve.rows, curve.sequences) == ((1, 16, 18), (1,))
        assert curve.seconds == pytest.approx((1.0, 16.0, 18.0))


async def test_a_child_that_cannot_time_its_steps_has_no_costs() -> None:
    runner = await _remote()
    try:
        assert await runner.step_costs(CostsWanted(seconds=1.0, folder=None, key="k")) is None
    finally:
        runner.close()


async def test_a_repeated_layout_crosses_once() -> None:
    driver = HandDriver(MODEL, CpuDevice(inline=True), [request(1, [1, 2, 3], max_output=40)], overlap=False)
    driver.random.random = lambda: 0.0  # type: ignore[method-assign]
    driver.random.randint = lambda least, most: most  # type: ignore[method-assign]
    make, layouts = driver._layout, {}

    def same_layout(decode: list, prompts: list, lengths: list) -> object:  # type: ignore[type-arg]
        return layouts.setdefault((len(decode), tuple(lengths)), make(decode, prompts, lengths))

    driver._layout = same_layout  # type: ignore[method-assign,assignment]
    driver.runner = runner = await _remote()
    try:
        assert await driver.run() == {1: list(solo(MODEL, driver.running[0].request).tokens)}
        assert len(layouts) == 2
    finally:
        runner.close()


async def test_a_child_that_dies_fails_the_step_in_flight() -> None:
    driver = HandDriver(MODEL, CpuDevice(inline=True), [request(1, list(range(1, 30)))])
    driver.random.random = lambda: 0.0  # type: ignore[method-assign]
    driver.runner = runner = await _remote()
    plan = driver._plan()
    assert plan is not None
    runner.launch_forward(plan)
    os.kill(runner._process.pid, signal.SIGKILL)
    with pytest.raises(DeviceError, match="ended by itself"):
        await runner.launch_sample(driver._sample_plan(plan))
    with pytest.raises(DeviceError, match="ended by itself"):
        runner.launch_forward(plan)
    runner.close()


async def test_a_runner_that_cannot_be_made_leaves_no_child() -> None:
    with pytest.raises(DeviceError, match="FileNotFoundError: weights"):
        await open_remote(fails, shape_for(MODEL))


def test_the_rings_hold_the_largest_plans() -> None:
    shape = shape_for(MODEL)
    sizes = ring_sizes(shape)
    assert sizes.requests % 64 == sizes.answers % 64 == 0
    assert sizes.requests > 3 * (shape.max_rows * 4 + shape.sequence_slots * shape.table_columns * 12)
