"""What only the device process has: a child that may die, a parent that may die, arrays that cross."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from stepahead.devices.device import DeviceError
from stepahead.devices.process import ChildTracebackError, DeviceProcess, MainModuleError
from stepahead.devices.ring import RingFullError
from stepahead.devices.wire import RingSizes

from .logbook import Logbook, broken


def _open(folder: Path, **options: int) -> DeviceProcess:
    return DeviceProcess(Logbook, (str(folder / "log"),), asyncio.get_running_loop(), **options)


async def test_arrays_cross_both_ways_unchanged(tmp_path: Path) -> None:
    process = _open(tmp_path)
    sent = [
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.array([], dtype=np.float32),
        np.array([True, False]),
        np.zeros((0, 3), dtype=np.int32),
        np.array(2.5),
        np.arange(10, dtype=np.uint64)[::2],
    ]
    ticket = process.call("echo", sent)
    await ticket
    for before, after in zip(sent, process.collect(ticket), strict=True):
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(after, before)
        assert after.flags.writeable
    process.close()


async def test_the_ring_is_used_again_and_again(tmp_path: Path) -> None:
    sizes = RingSizes(requests=1 << 14, answers=1 << 14)
    process = DeviceProcess(
        Logbook, (str(tmp_path / "log"),), asyncio.get_running_loop(), threads=2, rings=sizes
    )
    for value in range(100):
        ticket = process.call("echo", [np.full(500, value)])
        await ticket
        assert process.collect(ticket)[0][0] == value
    with pytest.raises(RingFullError):
        process.call("echo", [np.zeros(1 << 14)])
    threads = process.call("threads", [])
    await threads
    assert process.collect(threads)[0] == 2
    process.close()


async def test_a_dead_child_settles_every_ticket(tmp_path: Path) -> None:
    process = _open(tmp_path)
    await process.started
    process.cast("die", [])
    tickets = []
    with contextlib.suppress(DeviceError):  # on a busy machine it is seen to die before all is asked
        for _ in range(3):
            tickets.append(process.call("mark", []))
    for ticket in tickets:
        with pytest.raises(DeviceError, match="ended by itself with code -9"):
            await ticket
    with pytest.raises(DeviceError, match="ended by itself"):
        process.call("mark", [])
    process.close()


async def test_a_factory_that_fails_says_so(tmp_path: Path) -> None:
    process = DeviceProcess(broken, ("nowhere",), asyncio.get_running_loop())
    with pytest.raises(DeviceError, match="FileNotFoundError: nowhere") as caught:
        await process.started
    assert isinstance(caught.value.__cause__, ChildTracebackError)
    assert "in broken" in str(caught.value.__cause__)
    process.close()


async def test_a_program_without_a_python_hears_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(DeviceError, match="cannot be started"):
        _open(tmp_path)


async def test_closing_kills_a_child_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepahead.devices.process.CLOSE_SECONDS", 0.05)
    process = _open(tmp_path)
    await process.started
    process.cast("hang", [])
    ticket = process.call("mark", [])
    process.close()
    assert ticket.settled
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


async def test_the_terminals_interrupt_does_not_reach_the_child(tmp_path: Path) -> None:
    process = _open(tmp_path)
    await process.started
    os.kill(process.pid, signal.SIGINT)
    await process.call("mark", [])
    process.close()


def test_what_is_defined_in_main_cannot_be_sent_and_no_guard_is_needed(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio, sys
            sys.path.insert(0, {str(Path(__file__).parents[2])!r})
            from stepahead.devices.process import DeviceProcess, MainModuleError
            from tests.device.logbook import Logbook

            class Mine:
                pass

            async def main():
                loop = asyncio.get_running_loop()
                try:
                    DeviceProcess(Mine, (), loop)
                except MainModuleError as error:
                    print(error.name)
                process = DeviceProcess(Logbook, (sys.argv[1],), loop)
                await process.started
                print("started")

            print("main module")
            asyncio.run(main())  # leaves without closing
            """
        )
    )
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", str(script), str(tmp_path / "log")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.stdout.split("\n"), result.stderr) == (["main module", "Mine", "started", ""], "")
    assert MainModuleError("x").name == "x"


def test_a_child_does_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    """Even one that computes for ever: it looks at who its parent is."""
    script = textwrap.dedent(
        f"""
        import asyncio, os, sys
        sys.path.insert(0, {str(Path(__file__).parents[2])!r})
        from stepahead.devices.process import DeviceProcess
        from tests.device.logbook import Logbook

        async def main():
            process = DeviceProcess(Logbook, ({str(tmp_path / "log")!r},), asyncio.get_running_loop())
            await process.started
            process.cast("hang", [])
            print(process.pid, flush=True)
            os.kill(os.getpid(), 9)

        asyncio.run(main())
        """
    )
    result = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, timeout=60)
    child = int(result.stdout)
    deadline = time.monotonic() + 20.0
    while _runs(child):
        assert time.monotonic() < deadline, "the child is still there"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Whether a process exists and is not a zombie that nobody has waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
