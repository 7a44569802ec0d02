"""Traps A: leaving, cancelling, identity, and an engine that must not wear out."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Awaitable, Callable

import anyio
import pytest

from stepahead import (
    DeviceStalledError,
    Engine,
    FinishReason,
    HealthState,
    SamplingParams,
    Stream,
)
from stepahead.devices.clock import run_virtual
from stepahead.devices.simulated import HANG
from tests.actors.hashed_engine import exact, open_hashed, prompt_of, settle

LONG = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def baseline(engine: Engine) -> None:
    """Asserts that nothing of any request is left in the engine."""
    stats = engine.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert stats.kv_blocks_free == stats.kv_blocks
    assert all(box.depth == 0 and box.senders_waiting == 0 for box in stats.mailboxes.values())
    assert engine._host.wiring.output.live == 0
    assert not engine._host.wiring.intake._registered


async def first_deltas(engine: Engine, count: int) -> list[Stream]:
    streams = [engine.stream(prompt_of(20, seed), LONG) for seed in range(count)]
    await asyncio.gather(*(anext(stream) for stream in streams))
    return streams


async def test_a1_breaking_out_and_closing_returns_every_block() -> None:
    async with open_hashed() as engine:

        async def leave(seed: int) -> None:
            async with contextlib.aclosing(engine.stream(prompt_of(20, seed), LONG)) as stream:
                async for _ in stream:
                    break

        await asyncio.gather(*(leave(seed) for seed in range(50)))
        await settle(engine)
        baseline(engine)
        assert engine.stats().aborted == 50


async def test_a1_dropping_the_stream_returns_every_block() -> None:
    async with open_hashed() as engine:

        async def drop(seed: int) -> None:
            async for _ in engine.stream(prompt_of(20, seed), LONG):
                break

        await asyncio.gather(*(drop(seed) for seed in range(50)))
        gc.collect()
        await settle(engine)
        baseline(engine)


async def test_a1_cancelling_a_consumer_between_two_tokens_returns_every_block() -> None:
    async with open_hashed() as engine:
        arrived = asyncio.Semaphore(0)

        async def consume(seed: int) -> None:
            async for _ in engine.stream(prompt_of(20, seed), LONG):
                arrived.release()
                await asyncio.Event().wait()

        consumers = [asyncio.create_task(consume(seed)) for seed in range(50)]
        for _ in range(8):
            await arrived.acquire()
        for consumer in consumers:
            consumer.cancel()
        await asyncio.gather(*consumers, return_exceptions=True)
        await settle(engine)
        baseline(engine)


async def read_all(engine: Engine, seed: int = 0) -> None:
    async for _ in engine.stream(prompt_of(20, seed), LONG):
        pass


async def under_asyncio_timeout(engine: Engine) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.05):
            await read_all(engine)


async def under_anyio_fail_after(engine: Engine) -> None:
    with contextlib.suppress(TimeoutError), anyio.fail_after(1.05):
        await read_all(engine)


async def under_anyio_move_on_after(engine: Engine) -> None:
    with anyio.move_on_after(1.05):
        await read_all(engine)


@pytest.mark.parametrize("read", [under_asyncio_timeout, under_anyio_fail_after, under_anyio_move_on_after])
def test_a1_a_timeout_around_a_loop_returns_every_block(read: Callable[[Engine], Awaitable[None]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_hashed(latency=lambda label: 0.1) as engine:
            await read(engine)
            assert loop.time() == 1.05
            assert engine.stats().running == 1
            await settle(engine)
            baseline(engine)

    run_virtual(main())


async def test_a1_a_cancelled_task_group_leaves_nothing_behind() -> None:
    async def fail(engine: Engine) -> None:
        await anext(engine.stream(prompt_of(9, 99), LONG))
        raise LookupError("mine")

    async def run_group(engine: Engine) -> None:
        async with anyio.create_task_group() as group:
            for seed in range(5):
                group.start_soon(read_all, engine, seed)
            group.start_soon(fail, engine)

    async with open_hashed() as engine:
        with pytest.raises(ExceptionGroup) as caught:
            await run_group(engine)
        assert [str(error) for error in caught.value.exceptions] == ["mine"]
        await settle(engine)
        baseline(engine)


async def test_a1_a_stream_that_was_cancelled_ends() -> None:
    """As a native generator does: a cancelled `anext` is the end, not a pause."""
    async with open_hashed() as engine:
        await engine.pause()
        stream = await engine.stream(prompt_of(20), LONG).start()
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        assert [delta async for delta in stream] == []
        await engine.resume()
        await settle(engine)
        baseline(engine)


def test_a3_abort_during_the_last_step_is_an_abort() -> None:
    async def main() -> None:
        async with open_hashed(latency=lambda label: 0.05) as engine:
            params = SamplingParams(temperature=0, max_tokens=1)
            stream = engine.stream(prompt_of(40), params, request_id="x")
            reading = asyncio.create_task(anext(stream))
            await asyncio.sleep(0.05)
            assert engine.abort("x") == 1
            delta = await reading
            assert delta.finish_reason is FinishReason.ABORT
            assert delta.token_ids == ()
            assert [d async for d in stream] == []
            await settle(engine)
            baseline(engine)
            assert (engine.stats().aborted, engine.stats().finished) == (1, 0)
            assert engine.stats().kv_blocks_cached == 0

    run_virtual(main())


@pytest.mark.parametrize("label", ["x", "", None])
async def test_a5_live_requests_may_share_a_label(label: str | None) -> None:
    async with open_hashed() as engine:
        prompts = [prompt_of(20, seed) for seed in range(2)]
        done = await asyncio.gather(*(engine.generate(p, SHORT, request_id=label) for p in prompts))
        for completion, prompt in zip(done, prompts, strict=True):
            exact(completion, prompt, SHORT)
            assert completion.request_id == label


async def test_a5_an_abort_ends_all_that_share_the_label_and_no_other() -> None:
    async with open_hashed() as engine:
        twins = [engine.stream(prompt_of(20, seed), LONG, request_id="") for seed in range(2)]
        other = asyncio.create_task(engine.generate(prompt_of(20, 7), SHORT, request_id="other"))
        for twin in twins:
            await anext(twin)
        assert engine.abort("") == 2
        assert engine.abort("nobody") == 0
        for twin in twins:
            assert [delta.finish_reason async for delta in twin][-1] is FinishReason.ABORT
        exact(await other, prompt_of(20, 7), SHORT)


async def test_a7_a_thousand_abandoned_streams_do_not_wear_the_engine_down() -> None:
    knobs = {"max_sequences": 64, "max_step_rows": 512, "kv_blocks": 2049, "snapshot_slots": 64}
    async with open_hashed(**knobs) as engine:
        prompt = prompt_of(12, 10**6)
        await engine.generate(prompt, SHORT)  # everything is imported and allocated

        async def seconds() -> float:
            begun = time.perf_counter()
            exact(await engine.generate(prompt, SHORT), prompt, SHORT)
            return time.perf_counter() - begun

        idle = min([await seconds() for _ in range(5)])
        tasks = len(asyncio.all_tasks())
        for round_number in range(5):
            started = asyncio.Event()

            async def consume(seed: int, started: asyncio.Event = started) -> None:
                async for _ in engine.stream(prompt_of(12, seed), LONG):
                    started.set()

            consumers = [asyncio.create_task(consume(1024 * round_number + i)) for i in range(1024)]
            await started.wait()
            for consumer in consumers:
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
            await settle(engine)
            baseline(engine)
        assert len(asyncio.all_tasks()) == tasks
        assert min([await seconds() for _ in range(5)]) < 2 * idle + 0.005


def test_a9_a_device_that_stops_answering_is_found_out() -> None:
    def hang(label: str) -> BaseException | None:
        return HANG if label == "forward:7" else None  # type: ignore[return-value]

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_hashed(fault=hang, latency=lambda label: 0.01, stall_seconds=5.0) as engine:
            running = [asyncio.create_task(engine.generate(prompt_of(20, s), LONG)) for s in range(3)]
            done = await asyncio.gather(*running, return_exceptions=True)
            assert 5.0 < loop.time() < 5.3
            assert [type(error) for error in done] == [DeviceStalledError] * 3
            assert len({id(error) for error in done}) == 3
            health = engine.health()
            assert health.state is HealthState.FAILED
            assert not health.ok
            assert "step 7 did not finish" in health.reason
            with pytest.raises(DeviceStalledError):
                await engine.generate(prompt_of(5), SHORT)
            for ask in (engine.pause, engine.drain, engine.reset_prefix_cache):
                with pytest.raises(DeviceStalledError):
                    await ask()

    run_virtual(main())
