"""What only the CPU device has: threads, and what importing and losing it does to the program around it."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading

import pytest

from stepahead.devices.cpu import CpuDevice, default_threads
from stepahead.devices.device import DeviceError
from stepahead.devices.host_memory import host_memory


def _run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script], capture_output=True, text=True, timeout=60
    )


def test_torch_gets_one_thread_less_than_there_are_cores() -> None:
    assert default_threads() == max(1, len(os.sched_getaffinity(0)) - 1)


async def test_torch_threads_are_set_in_the_worker_and_work_is_off_the_loop() -> None:
    import torch

    device, seen = CpuDevice(threads=3), list[tuple[int, int]]()
    device.compute.enqueue(lambda: seen.append((torch.get_num_threads(), threading.get_ident())))
    await device.watch(device.compute.record(), asyncio.get_running_loop())
    device.close()
    assert seen[0][0] == 3
    assert seen[0][1] != threading.get_ident()


async def test_a_stream_waits_for_an_event_of_another() -> None:
    device, gate, order = CpuDevice(threads=1), threading.Event(), list[str]()
    copies = device.stream("copies")
    device.compute.enqueue(lambda: (gate.wait(), order.append("compute"))[0])  # type: ignore[func-returns-value]
    copies.wait(device.compute.record())
    copies.enqueue(lambda: order.append("copies"))
    ticket = device.watch(copies.record(), asyncio.get_running_loop())
    gate.set()
    await ticket
    device.close()
    assert order == ["compute", "copies"]


async def test_a_failure_crosses_from_the_stream_that_is_waited_for() -> None:
    device = CpuDevice(threads=1)
    device.compute.enqueue(lambda: int("no number"))  # type: ignore[arg-type,return-value]
    copies = device.stream("copies")
    copies.wait(device.compute.record())
    with pytest.raises(DeviceError, match="no number"):
        await device.watch(copies.record(), asyncio.get_running_loop())
    device.close()


async def test_a_lost_device_ends_its_thread() -> None:
    device = CpuDevice(threads=1)
    await device.watch(device.compute.record(), asyncio.get_running_loop())
    (worker,) = [thread for thread in threading.enumerate() if thread.name.startswith("stepahead-cpu")]
    del device
    gc.collect()
    worker.join(5.0)
    assert not worker.is_alive()


async def test_closing_does_not_wait_for_work_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepahead.devices.cpu.CLOSE_SECONDS", 0.01)
    device, gate = CpuDevice(threads=1), threading.Event()
    device.compute.enqueue(lambda: (gate.wait(), None)[1])
    ticket = device.watch(device.compute.record(), asyncio.get_running_loop())
    device.close()
    assert ticket.settled
    gate.set()


def test_importing_changes_nothing_and_imports_no_torch() -> None:
    result = _run(
        "import sys, signal, threading\n"
        "before = signal.getsignal(signal.SIGINT)\n"
        "import stepahead.devices.cpu, stepahead.devices.process, stepahead.devices.simulated\n"
        "assert 'torch' not in sys.modules\n"
        "assert threading.active_count() == 1\n"
        "assert signal.getsignal(signal.SIGINT) is before\n"
    )
    assert result.returncode == 0, result.stderr


def test_a_program_that_forgets_to_close_exits_silently() -> None:
    result = _run(
        "import asyncio\n"
        "from stepahead.devices.cpu import CpuDevice\n"
        "async def main():\n"
        "    global device\n"
        "    device = CpuDevice(threads=1)\n"
        "    device.compute.enqueue(lambda: None)\n"
        "    await device.watch(device.compute.record(), asyncio.get_running_loop())\n"
        "asyncio.run(main())\n"
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_memory_is_what_the_host_has() -> None:
    memory = host_memory()
    assert 0 < memory.free <= memory.total
