"""The engine's face on the hashed model: what an embedder asks for, and in which order it is served."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import pytest

from stepahead import (
    Completion,
    Delta,
    Engine,
    EngineClosedError,
    FinishReason,
    HealthState,
    InvalidParameterError,
    LoopRunningError,
    PromptTooLongError,
    QueueFullError,
    SamplingParams,
)
from stepahead.devices.clock import run_virtual
from tests.actors.hashed_engine import DRAFTING, exact, expected, open_hashed, prompt_of, settle, until
from tests.actors.null_engine import open_null
from tests.actors.scripted_engine import open_scripted
from tests.unit.text_tokenizer import small_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=300, ignore_eos=True)


async def test_awaiting_and_closing_instead_of_a_block() -> None:
    engine = await open_hashed()
    exact(await engine.generate(prompt_of(9), GREEDY), prompt_of(9), GREEDY)
    assert engine.health().state is HealthState.READY
    await asyncio.gather(engine.close(), engine.close())
    await engine.close()
    assert engine.health().state is HealthState.CLOSED


async def test_only_the_last_delta_of_a_choice_has_reason_and_usage() -> None:
    async with open_hashed() as engine:
        deltas = [delta async for delta in engine.stream(prompt_of(30), GREEDY)]
        assert [d.finish_reason for d in deltas] == [None] * (len(deltas) - 1) + [FinishReason.LENGTH]
        assert [d.usage is None for d in deltas] == [True] * (len(deltas) - 1) + [False]
        usage = deltas[-1].usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.output_tokens, usage.cached_tokens) == (30, 20, 0)
        assert usage.first_token_seconds is not None
        assert usage.first_token_seconds >= usage.queue_seconds >= 0


@pytest.mark.parametrize("prefix_cache", [True, False])
async def test_choices_share_the_prompt_and_differ(prefix_cache: bool) -> None:
    params = SamplingParams(temperature=1.0, seed=11, n=4, max_tokens=20, ignore_eos=True)
    prompt = prompt_of(60)
    async with open_hashed(prefix_cache=prefix_cache) as engine:
        choices: dict[int, list[Delta]] = {}
        async for delta in engine.stream(prompt, params):
            choices.setdefault(delta.index, []).append(delta)
        assert sorted(choices) == [0, 1, 2, 3]
        texts = {tuple(token for delta in deltas for token in delta.token_ids) for deltas in choices.values()}
        assert len(texts) == 4
        for index, deltas in choices.items():
            tokens = tuple(token for delta in deltas for token in delta.token_ids)
            assert (tokens, deltas[-1].finish_reason) == expected(prompt, params, choice=index)
            assert sum(delta.finish_reason is not None for delta in deltas) == 1
            usage = deltas[-1].usage
            assert usage is not None
            assert (usage.cached_tokens > 0) == (index > 0 and prefix_cache)
        await settle(engine)


async def test_a_leader_that_is_aborted_is_replaced() -> None:
    """All choices share one stream, so they can only lose their leader together; another request is exact."""
    params = SamplingParams(temperature=1.0, seed=11, n=3, max_tokens=20)
    async with open_hashed() as engine:
        stream = await engine.stream(prompt_of(100), params).start()
        await stream.aclose()
        exact(await engine.generate(prompt_of(100), GREEDY), prompt_of(100), GREEDY)
        await settle(engine)


async def test_generate_is_for_one_choice() -> None:
    async with open_hashed() as engine:
        with pytest.raises(InvalidParameterError, match="n=2"):
            await engine.generate(prompt_of(5), SamplingParams(n=2))


async def test_preempted_requests_go_on_exactly() -> None:
    prompts = [prompt_of(30, seed) for seed in range(8)]
    async with open_hashed(DRAFTING, kv_blocks=100, snapshot_slots=4) as engine:
        done = await asyncio.gather(*(engine.generate(prompt, LONG) for prompt in prompts))
        for completion, prompt in zip(done, prompts, strict=True):
            exact(completion, prompt, LONG, DRAFTING)
        assert engine.stats().preemptions > 0
        assert sum(completion.usage.preemptions for completion in done) == engine.stats().preemptions
        await settle(engine)


@pytest.mark.parametrize("overlap", [True, False])
async def test_overlap_is_an_ablation(overlap: bool) -> None:
    async with open_hashed(DRAFTING, overlap=overlap) as engine:
        done = await asyncio.gather(*(engine.generate(prompt_of(40, s), GREEDY) for s in range(16)))
        for seed, completion in enumerate(done):
            exact(completion, prompt_of(40, seed), GREEDY, DRAFTING)


def test_a_higher_priority_is_served_first() -> None:
    async def main() -> None:
        async with open_hashed(max_sequences=1, latency=lambda label: 0.001) as engine:
            order: list[int] = []

            async def run(priority: int) -> None:
                await engine.generate(prompt_of(9, priority), GREEDY, priority=priority)
                order.append(priority)

            first = asyncio.create_task(run(0))
            await until(lambda: engine.stats().running == 1)
            await asyncio.gather(first, *(run(priority) for priority in (1, 3, 2)))
            assert order == [0, 3, 2, 1]

    run_virtual(main())


@pytest.mark.parametrize("waiting", [False, True])
def test_a_deadline_ends_a_stream_with_what_there_is(waiting: bool) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with open_hashed(max_sequences=1, latency=lambda label: 0.01) as engine:
            if waiting:
                occupying = asyncio.create_task(engine.generate(prompt_of(9), LONG))
                await until(lambda: engine.stats().running == 1)
            begun = loop.time()
            completion = await engine.generate(prompt_of(20, 1), LONG, deadline=begun + 0.5)
            assert loop.time() == pytest.approx(begun + 0.5, abs=0.001)
            assert completion.finish_reason is FinishReason.DEADLINE
            tokens, _ = expected(prompt_of(20, 1), LONG)
            assert completion.token_ids == tokens[: len(completion.token_ids)]
            assert (len(completion.token_ids) > 10) != waiting
            if waiting:
                occupying.cancel()
            await settle(engine)
            assert engine.stats().aborted == 1 + waiting

    run_virtual(main())


def test_a_deadline_that_has_passed_gives_nothing() -> None:
    async def main() -> None:
        async with open_hashed(latency=lambda label: 0.01) as engine:
            await asyncio.sleep(1)
            completion = await engine.generate(prompt_of(20), LONG, deadline=0.5)
            assert (completion.token_ids, completion.finish_reason) == ((), FinishReason.DEADLINE)
            await settle(engine)

    run_virtual(main())


async def test_a_full_queue_rejects_under_the_policy_reject() -> None:
    async with open_hashed(max_sequences=1, queue_capacity=2, queue_policy="reject") as engine:
        await engine.pause()
        waiting = [await engine.stream(prompt_of(9, seed), GREEDY).start() for seed in range(2)]
        with pytest.raises(QueueFullError) as caught:
            await engine.stream(prompt_of(9), GREEDY).start()
        assert caught.value.waiting == 2
        with pytest.raises(InvalidParameterError, match="n=3"):
            await engine.stream(prompt_of(9), SamplingParams(n=3)).start()
        await engine.resume()
        for seed, stream in enumerate(waiting):
            tokens = tuple([token async for delta in stream for token in delta.token_ids])
            assert tokens == expected(prompt_of(9, seed), GREEDY)[0]
        await settle(engine)
        assert engine._host.wiring.output.live == 0


async def test_a_full_queue_makes_callers_wait_in_order() -> None:
    async with open_hashed(max_sequences=1, queue_capacity=2) as engine:
        await engine.pause()
        order: list[int] = []

        async def run(seed: int) -> None:
            exact(await engine.generate(prompt_of(9, seed), GREEDY), prompt_of(9, seed), GREEDY)
            order.append(seed)

        running = [asyncio.create_task(run(seed)) for seed in range(8)]
        await until(lambda: engine.stats().waiting == 8)
        assert engine._host.wiring.scheduler.core.counts().waiting == 2
        running[4].cancel()  # one that waits outside the queue
        running[1].cancel()  # one inside it
        await engine.resume()
        await asyncio.gather(*running, return_exceptions=True)
        assert order == [0, 2, 3, 5, 6, 7]
        await settle(engine)


def test_a_deadline_outside_the_queue_is_kept() -> None:
    async def main() -> None:
        async with open_hashed(max_sequences=1, queue_capacity=1, latency=lambda label: 0.01) as engine:
            await engine.pause()
            first = await engine.stream(prompt_of(9), GREEDY).start()
            late = await engine.generate(prompt_of(9, 2), SamplingParams(n=1), deadline=2.0)
            assert late.finish_reason is FinishReason.DEADLINE
            assert asyncio.get_running_loop().time() == 2.0
            await engine.resume()
            assert [delta async for delta in first][-1].finish_reason is FinishReason.LENGTH

    run_virtual(main())


async def test_abort_all_reaches_the_running_the_queued_and_those_outside() -> None:
    async with open_hashed(max_sequences=1, queue_capacity=1) as engine:
        running = engine.stream(prompt_of(9), LONG)
        await anext(running)
        others = [asyncio.create_task(engine.generate(prompt_of(9, s), LONG)) for s in range(3)]
        await until(lambda: engine.stats().waiting == 3)
        engine.abort_all()
        assert {(await other).finish_reason for other in others} == {FinishReason.ABORT}
        assert [delta async for delta in running][-1].finish_reason is FinishReason.ABORT
        await settle(engine)
        exact(await engine.generate(prompt_of(9), GREEDY), prompt_of(9), GREEDY)


async def test_more_callers_at_once_than_a_mailbox_holds() -> None:
    """Callers wait; a step's commit, which cannot, always finds room."""
    one = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    async with open_null(max_sequences=64, mailbox_capacity=64, queue_capacity=32) as engine:
        done = await asyncio.gather(*(engine.generate([5, 6], one) for _ in range(1000)))
        assert [len(completion.token_ids) for completion in done] == [3] * 1000
        boxes = engine.stats().mailboxes
        assert boxes["scheduler"].high_water > 32, "callers did pile up"


async def test_draining_ends_what_is_in_and_refuses_what_comes() -> None:
    async with open_hashed(queue_capacity=2, max_sequences=1) as engine:
        running = [asyncio.create_task(engine.generate(prompt_of(9, s), GREEDY)) for s in range(5)]
        await until(lambda: engine.stats().running + engine.stats().waiting == 5)
        draining = asyncio.create_task(engine.drain())
        await until(lambda: engine.health().state is HealthState.DRAINING)
        with pytest.raises(EngineClosedError, match="draining"):
            await engine.generate(prompt_of(5), GREEDY)
        await draining
        assert engine._host.wiring.output.live == 0
        for seed, task in enumerate(running):
            exact(await task, prompt_of(9, seed), GREEDY)
        await engine.drain()


async def test_closing_while_somebody_asks() -> None:
    engine = await open_hashed()
    stream = engine.stream(prompt_of(9), LONG)
    await anext(stream)
    draining = asyncio.create_task(engine.drain())
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(EngineClosedError):
        await draining
    for ask in (engine.pause, engine.resume, engine.drain, engine.reset_prefix_cache):
        with pytest.raises(EngineClosedError):
            await ask()


async def test_pausing_says_so_and_still_takes_requests() -> None:
    async with open_hashed() as engine:
        await engine.pause()
        await engine.pause()
        assert engine.health().state is HealthState.PAUSED
        assert engine.health().ok
        task = asyncio.create_task(engine.generate(prompt_of(9), GREEDY))
        await until(lambda: engine.stats().waiting == 1)
        await engine.resume()
        exact(await task, prompt_of(9), GREEDY)
        assert engine.health().state is HealthState.READY


async def test_leaving_while_paused_gives_back_at_once() -> None:
    """Blocks must not wait for the next request, nor for `resume`."""
    async with open_hashed() as engine:
        stream = engine.stream(prompt_of(9), LONG)
        await anext(stream)
        await engine.pause()
        await stream.aclose()
        await settle(engine)


async def test_many_prompts_finish_in_any_order_and_say_which_they_are() -> None:
    async def prompts() -> AsyncIterator[list[int]]:
        for seed in range(40):
            yield prompt_of(1 + seed % 7, seed)

    params = SamplingParams(temperature=1.0, seed=5, n=2, max_tokens=9, ignore_eos=True)
    async with open_hashed() as engine:
        seen: dict[tuple[int, int], Completion] = {}
        async for completion in engine.generate_many(prompts(), params, concurrency=6):
            seen[int(completion.request_id or -1), completion.index] = completion
        assert sorted(seen) == [(number, index) for number in range(40) for index in range(2)]
        for (number, _), completion in seen.items():
            exact(completion, prompt_of(1 + number % 7, number), params)


async def test_many_prompts_draw_no_more_than_they_can_serve() -> None:
    drawn = 0

    async def endless() -> AsyncIterator[list[int]]:
        nonlocal drawn
        while True:
            drawn += 1
            yield prompt_of(5, drawn)

    async with open_hashed() as engine:
        await engine.generate(prompt_of(5), GREEDY)
        tasks = len(asyncio.all_tasks())
        async with contextlib.aclosing(engine.generate_many(endless(), GREEDY, concurrency=4)) as finished:
            await anext(finished)
        assert drawn <= 12
        await settle(engine)
        assert len(asyncio.all_tasks()) == tasks


async def test_many_prompts_raise_the_first_error_and_cancel_the_rest() -> None:
    async with open_hashed() as engine:
        prompts = [prompt_of(9), prompt_of(9, 1), [2] * 999, *(prompt_of(9, s) for s in range(2, 30))]
        with pytest.raises(PromptTooLongError):
            async for _ in engine.generate_many(prompts, LONG, concurrency=4):
                pass
        await settle(engine)


async def test_many_prompts_with_parameters_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    async with open_hashed() as engine:
        params = [SamplingParams(temperature=0, max_tokens=n) for n in range(1, 6)]
        prompts = [prompt_of(4, seed) for seed in range(5)]
        async for completion in engine.generate_many(prompts, params, progress=True):
            index = int(completion.request_id or -1)
            exact(completion, prompts[index], params[index])
    assert capsys.readouterr().out == ""


def test_a_script_without_a_loop() -> None:
    with open_hashed() as engine:
        for _ in range(2):
            done = engine.generate_sync([prompt_of(5, seed) for seed in range(3)], GREEDY)
            for seed, completion in enumerate(done):
                exact(completion, prompt_of(5, seed), GREEDY)
    assert engine.health().state is HealthState.CLOSED


async def test_the_blocking_form_is_refused_where_it_would_block() -> None:
    async with open_hashed() as engine:
        with pytest.raises(LoopRunningError, match="would block"):
            engine.generate_sync([prompt_of(5)], GREEDY)
        with pytest.raises(LoopRunningError, match="async with"), open_hashed():
            pass


async def test_the_blocking_form_works_from_another_thread() -> None:
    async with open_hashed() as engine:
        done = await asyncio.to_thread(engine.generate_sync, [prompt_of(5)], GREEDY)
        exact(done[0], prompt_of(5), GREEDY)
        health: list[bool] = []
        thread = threading.Thread(target=lambda: health.append(engine.health().ok))
        thread.start()
        thread.join()
        assert health == [True]


async def test_a_failed_opening_raises_and_leaves_no_task() -> None:
    with pytest.raises(ValueError, match="max_step_rows"):
        await open_hashed(max_step_rows=4)
    assert len(asyncio.all_tasks()) == 1


async def test_messages_are_rendered_literally() -> None:
    tokenizer = small_tokenizer()
    async with open_scripted([tokenizer.end_id or 0]) as engine:
        with pytest.raises(InvalidParameterError, match="role"):
            await engine.generate([{"role": "tool", "content": "x"}], GREEDY)
        with pytest.raises(InvalidParameterError, match="content"):
            await engine.generate([{"role": "user", "content": ["x"]}], GREEDY)


async def collect_text(engine: Engine, text: str) -> str:
    return "".join([delta.text async for delta in engine.stream(text, GREEDY)])


async def test_text_in_text_out() -> None:
    tokenizer = small_tokenizer()
    async with open_scripted(
        [*tokenizer.encode("hello world", literal=True), tokenizer.end_id or 0]
    ) as engine:
        assert await collect_text(engine, "say it") == "hello world"
        assert engine.tokenizer is tokenizer
