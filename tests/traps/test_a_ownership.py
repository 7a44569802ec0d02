"""Traps A, on loops, readers and owners: whose engine it is, and who may read a stream."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator

import anyio
import pytest
import pytest_asyncio

from stepahead import (
    Engine,
    EngineClosedError,
    FinishReason,
    HealthState,
    Stream,
    StreamInUseError,
    WrongLoopError,
)
from tests.actors.hashed_engine import exact, expected, open_hashed, prompt_of, settle

from .test_a_lifetime import LONG, SHORT, baseline, first_deltas


def test_a10_a_second_loop_is_refused_with_both_named() -> None:
    kept: list[Engine] = []

    async def open_and_leave() -> None:
        engine = await open_hashed()
        kept.append(engine)
        await engine.generate(prompt_of(5), SHORT)

    async def use_again() -> None:
        with pytest.raises(WrongLoopError) as caught:
            await kept[0].generate(prompt_of(5), SHORT)
        assert repr(caught.value.owner) in str(caught.value)
        assert repr(caught.value.caller) in str(caught.value)
        assert kept[0].health().state is HealthState.CLOSED
        await kept[0].close()

    asyncio.run(open_and_leave())
    asyncio.run(use_again())


async def test_a10_a_thread_with_its_own_loop_is_refused() -> None:
    async with open_hashed() as engine:
        caught: list[BaseException] = []

        def elsewhere() -> None:
            try:
                asyncio.run(engine.generate(prompt_of(5), SHORT))
            except WrongLoopError as error:
                caught.append(error)

        await asyncio.to_thread(elsewhere)
        assert len(caught) == 1
        exact(await engine.generate(prompt_of(5), SHORT), prompt_of(5), SHORT)


async def test_a12_a_second_reader_gets_an_error_and_the_first_goes_on() -> None:
    async with open_hashed() as engine:
        await engine.pause()
        stream = engine.stream(prompt_of(20), SHORT)
        await stream.start()
        reading = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        with pytest.raises(StreamInUseError):
            await anext(stream)
        with pytest.raises(StreamInUseError):
            await stream.aclose()
        await engine.resume()
        tokens = [*(await reading).token_ids]
        async for delta in stream:
            tokens += delta.token_ids
        assert (tuple(tokens), FinishReason.LENGTH) == expected(prompt_of(20), SHORT)
        await settle(engine)
        baseline(engine)


async def test_a12_closing_twice_and_iterating_after_the_end_are_harmless() -> None:
    async with open_hashed() as engine:
        stream = engine.stream(prompt_of(20), SHORT)
        assert len([delta async for delta in stream]) >= 1
        assert [delta async for delta in stream] == []
        await stream.aclose()
        await stream.aclose()
        never_started = engine.stream(prompt_of(20), SHORT)
        await never_started.aclose()
        assert [delta async for delta in never_started] == []


async def test_a13_a_stream_collected_on_another_thread_is_aborted_on_the_loop() -> None:
    async with open_hashed() as engine:
        streams = await first_deltas(engine, 4)
        threads: set[int] = set()
        intake = engine._host.wiring.intake
        leave = intake.leave

        def noted(registration: object) -> None:
            threads.add(threading.get_ident())
            leave(registration)  # type: ignore[arg-type]

        intake.leave = noted  # type: ignore[method-assign, assignment]

        def collect() -> None:
            streams.clear()
            gc.collect()

        await asyncio.to_thread(collect)
        await settle(engine)
        baseline(engine)
        assert threads == {threading.get_ident()}
        assert engine.stats().aborted == 4


def test_a13_a_stream_that_outlives_its_loop_is_quiet() -> None:
    kept: list[Stream] = []

    async def main() -> None:
        async with open_hashed() as engine:
            kept.extend(await first_deltas(engine, 2))

    asyncio.run(main())
    kept.clear()
    gc.collect()


async def test_closing_ends_every_stream_once() -> None:
    async with open_hashed() as engine:
        streams = await first_deltas(engine, 3)
        waiting = asyncio.create_task(anext(engine.stream(prompt_of(20, 9), LONG)))
        await asyncio.sleep(0)
    with pytest.raises(EngineClosedError):
        await waiting
    for stream in streams:
        with pytest.raises(EngineClosedError):
            async for _ in stream:
                pass
        assert [delta async for delta in stream] == []
    with pytest.raises(EngineClosedError):
        await engine.generate(prompt_of(5), SHORT)
    await engine.close()


async def test_a10_an_engine_opened_by_one_task_serves_others() -> None:
    """As in an ASGI lifespan: opened and closed by one task, used by the tasks of requests."""
    started, stopping = asyncio.Event(), asyncio.Event()
    state: dict[str, Engine] = {}

    async def lifespan() -> None:
        async with open_hashed() as engine:
            state["engine"] = engine
            started.set()
            await stopping.wait()

    async def request(seed: int) -> None:
        exact(await state["engine"].generate(prompt_of(9, seed), SHORT), prompt_of(9, seed), SHORT)

    living = asyncio.create_task(lifespan())
    await started.wait()
    await asyncio.gather(*(request(seed) for seed in range(12)))
    stopping.set()
    await living
    assert state["engine"].health().state is HealthState.CLOSED


@pytest_asyncio.fixture
async def fixture_engine() -> AsyncIterator[Engine]:
    async with open_hashed() as engine:
        yield engine


async def test_a10_an_engine_in_a_fixture(fixture_engine: Engine) -> None:
    exact(await fixture_engine.generate(prompt_of(9), SHORT), prompt_of(9), SHORT)


async def test_a10_a_cancelled_scope_around_everything_still_closes() -> None:
    """Inside a cancelled anyio scope every `await` raises, also those of the closing."""
    kept: list[Engine] = []
    with anyio.CancelScope() as scope:
        async with open_hashed() as engine:
            kept.append(engine)
            stream = engine.stream(prompt_of(9), LONG)
            await anext(stream)
            scope.cancel()
            await anext(stream)
            await anyio.sleep_forever()
    assert kept[0].health().state is HealthState.CLOSED
    assert scope.cancelled_caught
