"""Devices tell when their work ran: in order, on one clock, also from another process."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable

import pytest

from stepahead.devices.clock import run_virtual
from stepahead.devices.cpu import CpuDevice
from stepahead.devices.device import Device, DeviceError
from stepahead.devices.nvidia import NvidiaDevice
from stepahead.devices.simulated import HANG, SimulatedDevice
from stepahead.engine.model.remote import open_remote
from tests.unit.hashed_driver import HandDriver, request, shape_for

from .test_remote_runner import MODEL, hashed

Told = list[tuple[str, str, int, int]]
REAL = {
    "cpu thread": lambda: CpuDevice(1),
    "cpu inline": lambda: CpuDevice(inline=True),
    "simulated": lambda: SimulatedDevice(asyncio.get_running_loop(), latency=lambda _: 1e-4, real_time=True),
}


@pytest.mark.parametrize("kind", [*REAL, pytest.param("nvidia", marks=pytest.mark.gpu)])
async def test_pieces_are_told_in_order_between_enqueue_and_completion(kind: str) -> None:
    make: Callable[[], Device] = REAL.get(kind, NvidiaDevice)
    told: Told = []
    device = make()
    device.time_work(lambda *piece: told.append(piece))
    before = time.perf_counter_ns()
    for number in range(20):
        device.compute.enqueue(lambda: None, f"forward:{number}")
    await device.watch(device.compute.record(), asyncio.get_running_loop())
    after = time.perf_counter_ns()
    device.close()
    assert [label for _, label, _, _ in told] == [f"forward:{number}" for number in range(20)]
    assert {stream for stream, _, _, _ in told} == {"compute"}
    edges = [time for _, _, begin, end in told for time in (begin, end)]
    assert edges == sorted(edges)
    assert before <= edges[0]
    assert edges[-1] <= after


async def test_work_that_failed_ran_too_and_what_is_skipped_behind_it_did_not() -> None:
    told: Told = []
    device = CpuDevice(inline=True)
    device.time_work(lambda *piece: told.append(piece))
    device.compute.enqueue(lambda: 1 // 0, "forward:0")
    with pytest.raises(DeviceError):
        device.compute.enqueue(lambda: None, "sample:0")
    with pytest.raises(DeviceError):
        await device.watch(device.compute.record(), asyncio.get_running_loop())
    assert [label for _, label, _, _ in told] == ["forward:0"]


def test_virtual_time_is_told_exactly_and_a_hang_never() -> None:
    async def run() -> Told:
        told: Told = []
        loop = asyncio.get_running_loop()
        device = SimulatedDevice(
            loop, latency=lambda _: 0.002, fault=lambda label: HANG if label == "forward:2" else None
        )
        device.time_work(lambda *piece: told.append(piece))
        for number in range(3):
            device.compute.enqueue(lambda: None, f"forward:{number}")
        await asyncio.sleep(1.0)
        device.close()
        return told

    ms = 10**6
    assert run_virtual(run()) == [
        ("compute", "forward:0", 0, 2 * ms),
        ("compute", "forward:1", 2 * ms, 4 * ms),
    ]


async def test_a_device_process_tells_on_our_clock() -> None:
    driver = HandDriver(MODEL, CpuDevice(inline=True), [request(1, [1, 2, 3], max_output=10)])
    driver.runner = runner = await open_remote(functools.partial(hashed, MODEL), shape_for(MODEL), threads=1)
    told: Told = []
    runner.time_work(lambda *piece: told.append(piece))
    before = time.perf_counter_ns()
    try:
        await driver.run()
    finally:
        runner.close()
    steps = len(told) // 2
    assert [label for _, label, _, _ in told] == [
        f"{stage}:{step}" for step in range(steps) for stage in ("forward", "sample")
    ]
    edges = [time for _, _, begin, end in told for time in (begin, end)]
    assert edges == sorted(edges)
    assert before <= edges[0] <= edges[-1] <= time.perf_counter_ns()
