"""What only the simulated device has: scripted times, scripted failures, a timeline."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from stepahead.devices.clock import run_virtual
from stepahead.devices.device import DeviceError, MemoryInfo
from stepahead.devices.simulated import HANG, Hang, SimulatedDevice

SECONDS = {"short": 1.0, "long": 10.0}


def _nothing() -> None:
    pass


def _device(**options: Any) -> SimulatedDevice:
    return SimulatedDevice(
        asyncio.get_running_loop(), latency=lambda label: SECONDS.get(label, 0.0), **options
    )


def _virtual(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test())

    run.__name__ = test.__name__
    return run


@_virtual
async def test_work_takes_its_scripted_time() -> None:
    device, loop = _device(), asyncio.get_running_loop()
    ended: list[float] = []
    device.compute.enqueue(lambda: ended.append(loop.time()), "long")
    device.compute.enqueue(lambda: ended.append(loop.time()), "short")
    await device.watch(device.compute.record(), loop)
    assert ended == [10.0, 11.0]
    assert loop.time() == 11.0
    device.close()


@_virtual
async def test_an_idle_stream_starts_work_when_it_is_enqueued() -> None:
    timeline: list[tuple[str, float, float]] = []
    device, loop = _device(observe=lambda *span: timeline.append(span)), asyncio.get_running_loop()
    device.compute.enqueue(_nothing, "short")
    await asyncio.sleep(5.0)
    device.compute.enqueue(_nothing, "short")
    device.compute.enqueue(_nothing, "short")
    await device.watch(device.compute.record(), loop)
    assert timeline == [("short", 0.0, 1.0), ("short", 5.0, 6.0), ("short", 6.0, 7.0)]
    device.close()


@_virtual
async def test_streams_run_beside_each_other_and_wait_when_told() -> None:
    device, loop, ended = _device(), asyncio.get_running_loop(), list[tuple[str, float]]()
    copies = device.stream("copies")
    assert device.stream("copies") is copies
    device.compute.enqueue(lambda: ended.append(("compute", loop.time())), "long")
    copies.enqueue(lambda: ended.append(("before", loop.time())), "short")
    copies.wait(device.compute.record())
    copies.enqueue(lambda: ended.append(("after", loop.time())), "short")
    await device.watch(copies.record(), loop)
    assert ended == [("before", 1.0), ("compute", 10.0), ("after", 11.0)]
    device.close()


@_virtual
async def test_a_stream_that_waits_for_a_failed_one_fails() -> None:
    device = _device(fault=lambda label: ValueError("broken") if label == "bad" else None)
    loop = asyncio.get_running_loop()
    copies = device.stream("copies")
    device.compute.enqueue(_nothing, "bad")
    copies.wait(device.compute.record())
    copies.enqueue(lambda: pytest.fail("ran behind a failure"), "short")
    with pytest.raises(DeviceError, match="broken"):
        await device.watch(copies.record(), loop)
    device.close()


@_virtual
async def test_a_scripted_fault_skips_the_work_and_poisons() -> None:
    device = _device(fault=lambda label: ValueError("broken") if label == "bad" else None)
    loop = asyncio.get_running_loop()
    device.compute.enqueue(lambda: pytest.fail("a failing launch ran"), "bad")
    with pytest.raises(DeviceError, match=r"bad failed: ValueError: broken"):
        await device.watch(device.compute.record(), loop)
    device.close()


@_virtual
async def test_a_hang_never_ends_and_close_still_settles() -> None:
    def fault(label: str) -> BaseException | Hang | None:
        return HANG if label == "stuck" else None

    timeline: list[float] = []
    device = _device(fault=fault, observe=lambda label, start, end: timeline.append(end))
    loop = asyncio.get_running_loop()
    device.compute.enqueue(_nothing, "stuck")
    device.compute.enqueue(lambda: pytest.fail("ran behind a hang"), "short")
    ticket = device.watch(device.compute.record(), loop)
    await asyncio.sleep(1e6)
    assert not ticket.settled
    assert timeline == [math.inf, math.inf]
    device.close()
    assert isinstance(ticket.error, DeviceError)
    with pytest.raises(DeviceError, match="closed"):
        device.compute.enqueue(_nothing)


@_virtual
async def test_memory_and_capabilities_are_as_scripted() -> None:
    device = _device(memory=MemoryInfo(total=100, free=40))
    assert device.memory() == MemoryInfo(total=100, free=40)
    assert device.capabilities.kind == "simulated"
    assert device.staging(16).host.nbytes == 16
    with pytest.raises(NotImplementedError):
        device.capture(_nothing)
    device.close()


async def test_real_time_is_paced_by_a_thread_and_keeps_the_order() -> None:
    spans: list[tuple[float, float]] = []
    device = SimulatedDevice(
        asyncio.get_running_loop(),
        latency=lambda label: 2e-3,
        observe=lambda label, start, end: spans.append((start, end)),
        real_time=True,
    )
    for _ in range(5):
        device.compute.enqueue(_nothing)
    await device.watch(device.compute.record(), asyncio.get_running_loop())
    assert all(later[0] >= earlier[1] for earlier, later in itertools.pairwise(spans))
    assert device.now() >= spans[-1][1]
    device.close()
