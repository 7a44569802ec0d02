"""The loop with a virtual clock: exact times, no waiting, no way to hang."""

from __future__ import annotations

import asyncio
import threading
import time

import anyio
import pytest

from stepahead.devices.clock import NothingScheduledError, VirtualClockLoop, run_virtual


def test_time_starts_at_zero_and_jumps_to_the_next_timer() -> None:
    async def hour() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        for _ in range(3):
            await asyncio.sleep(1200.0)
            times.append(loop.time())
        return times

    before = time.monotonic()
    assert run_virtual(hour()) == [0.0, 1200.0, 2400.0, 3600.0]
    assert time.monotonic() - before < 10.0


def test_time_stands_still_while_something_is_ready() -> None:
    async def spin() -> float:
        asyncio.get_running_loop().call_later(1.0, lambda: None)
        for _ in range(100):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtual(spin()) == 0.0


def test_timers_run_in_order_of_time_then_of_creation() -> None:
    async def order() -> list[str]:
        loop, seen = asyncio.get_running_loop(), list[str]()
        loop.call_later(2.0, seen.append, "late")
        loop.call_later(1.0, seen.append, "early")
        loop.call_later(1.0, seen.append, "early too")
        await asyncio.sleep(3.0)
        return seen

    assert run_virtual(order()) == ["early", "early too", "late"]


def test_a_cancelled_timer_does_not_move_time() -> None:
    async def cancel() -> float:
        loop = asyncio.get_running_loop()
        loop.call_later(5.0, lambda: None).cancel()
        await asyncio.sleep(7.0)
        return loop.time()

    assert run_virtual(cancel()) == 7.0


def test_waiting_for_nothing_raises_at_once_and_names_who_waits() -> None:
    async def waits_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NothingScheduledError, match="waits_for_ever") as caught:
        run_virtual(waits_for_ever())
    assert "test_clock.py" in str(caught.value)


def test_cleanup_still_runs_after_a_hang() -> None:
    cleaned: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("yes")

    with pytest.raises(NothingScheduledError):
        run_virtual(waits())
    assert cleaned == ["yes"]


def test_timeouts_and_scopes_use_the_virtual_clock() -> None:
    async def limits() -> tuple[bool, float]:
        with anyio.move_on_after(30.0) as scope:
            await anyio.sleep(60.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30.0):
                await asyncio.sleep(60.0)
        return scope.cancelled_caught, asyncio.get_running_loop().time()

    assert run_virtual(limits()) == (True, 60.0)


def test_executor_work_runs_inside_the_call() -> None:
    async def offload() -> tuple[int, int]:
        return await asyncio.to_thread(threading.get_ident), threading.get_ident()

    ran_on, caller = run_virtual(offload())
    assert ran_on == caller


def test_executor_errors_arrive() -> None:
    async def offload() -> None:
        await asyncio.to_thread(int, "no number")

    with pytest.raises(ValueError, match="no number"):
        run_virtual(offload())


def test_wake_ups_from_other_threads_are_refused() -> None:
    loop = VirtualClockLoop()
    errors: list[str] = []

    def wake() -> None:
        try:
            loop.call_soon_threadsafe(lambda: None)
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wake)
    thread.start()
    thread.join()
    loop.close()
    assert errors == ["a loop with a virtual clock takes no wake-ups from other threads"]


def test_two_runs_of_one_program_are_the_same() -> None:
    async def program() -> list[tuple[float, int]]:
        loop, seen = asyncio.get_running_loop(), list[tuple[float, int]]()

        async def worker(index: int) -> None:
            for round_ in range(5):
                await asyncio.sleep((index * 7 + round_ * 3) % 5 / 10)
                seen.append((loop.time(), index))

        async with asyncio.TaskGroup() as group:
            for index in range(10):
                group.create_task(worker(index))
        return seen

    assert run_virtual(program()) == run_virtual(program())
