"""Traps C: a request that is wrong, unlucky or slow hurts nobody else."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from stepahead import (
    Completion,
    EmptyPromptError,
    Engine,
    EngineFailedError,
    FinishReason,
    HealthState,
    InvalidParameterError,
    InvalidRequestError,
    NotFiniteError,
    PromptNeverFitsError,
    PromptTooLongError,
    RequestFailedError,
    SamplingParams,
    SlowReaderError,
    TokenOutOfVocabularyError,
)
from stepahead.devices.clock import run_virtual
from stepahead.devices.device import DeviceError
from stepahead.engine.config import EDGE_VALUES, EdgeValue
from stepahead.engine.model.hashed import HashedModel
from stepahead.engine.model.runner import StepResult
from tests.actors.hashed_engine import MODEL, exact, expected, open_hashed, prompt_of, settle, until
from tests.actors.scripted_engine import open_scripted
from tests.unit.text_tokenizer import small_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


async def beside_others(engine: Engine, wrong: Callable[[], Any], others: int = 7) -> BaseException:
    """Runs something wrong in the middle of others, which must not notice; returns its error."""
    prompts = [prompt_of(20, seed) for seed in range(others)]
    running = [asyncio.create_task(engine.generate(prompt, GREEDY)) for prompt in prompts]
    await until(lambda: engine.stats().output_tokens >= 2 * others)
    [error] = await asyncio.gather(wrong(), return_exceptions=True)
    for task, prompt in zip(running, prompts, strict=True):
        exact(await task, prompt, GREEDY)
    await settle(engine)
    assert isinstance(error, BaseException)
    return error


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ([], EmptyPromptError),
        (np.empty(0, dtype=np.int32), EmptyPromptError),
        ([MODEL.vocab_size], TokenOutOfVocabularyError),
        ([2**31 + 2], TokenOutOfVocabularyError),
        ([2**70], TokenOutOfVocabularyError),
        ([-1], TokenOutOfVocabularyError),
        ([2] * 600, PromptTooLongError),
        ([1.5], InvalidParameterError),
        (["a"], InvalidParameterError),
        ([[1, 2], [3, 4]], InvalidParameterError),
        ([[1], [2, 3]], InvalidParameterError),
        ([None], InvalidParameterError),
        (b"bytes", InvalidParameterError),
        (7, InvalidParameterError),
        ("text without a tokenizer", InvalidParameterError),
    ],
    ids=repr,
)
async def test_c1_a_prompt_that_cannot_be_served_is_its_callers_error(
    prompt: Any, kind: type[InvalidRequestError]
) -> None:
    async with open_hashed() as engine:
        error = await beside_others(engine, lambda: engine.generate(prompt, GREEDY))
        assert type(error) is kind
        assert isinstance(error, ValueError)
        assert (engine.stats().failed, engine.stats().finished) == (0, 7)


async def test_c1_text_of_nothing_and_of_special_tokens_is_served() -> None:
    """The vocabulary writes a beginning-of-text token, so even no text is a prompt."""
    tokenizer = small_tokenizer()
    async with open_scripted([tokenizer.end_id or 1]) as engine:
        for text, tokens in (("", 1), ("  ", 3), ("<｜User｜>", 2)):
            completion = await engine.generate(text, GREEDY)
            assert completion.usage.prompt_tokens == tokens


async def test_c1_a_prompt_that_can_never_fit_the_pool() -> None:
    async with open_hashed(kv_blocks=9) as engine:
        error = await beside_others(engine, lambda: engine.generate(prompt_of(100), GREEDY), others=1)
        assert isinstance(error, PromptNeverFitsError)


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize(
    ("max_tokens", "given"), [(0, 0), (1, 1), (2, 2), (None, 512 - 20), (2**31, 512 - 20)]
)
async def test_c2_max_tokens(max_tokens: int | None, given: int, drafts: int) -> None:
    model = HashedModel(draft_tokens=drafts)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    async with open_hashed(model) as engine:
        completion = await engine.generate(prompt_of(20), params)
        assert len(completion.token_ids) == completion.usage.output_tokens == given
        assert completion.finish_reason is FinishReason.LENGTH
        exact(completion, prompt_of(20), params, model)
        assert (completion.usage.first_token_seconds is None) == (given == 0)


async def test_c2_max_tokens_0_leaves_a_cached_prompt() -> None:
    async with open_hashed() as engine:
        await engine.generate(prompt_of(40), SamplingParams(max_tokens=0))
        second = await engine.generate(prompt_of(40), GREEDY)
        assert second.usage.cached_tokens > 0
        exact(second, prompt_of(40), GREEDY)


EDGES_OF_PARAMS = [edge for edge in EDGE_VALUES if "prompt" not in edge.case and "token id" not in edge.case]


@pytest.mark.parametrize("edge", EDGES_OF_PARAMS, ids=lambda edge: edge.case)
async def test_c2_c5_c6_every_edge_value_through_the_engine(edge: EdgeValue) -> None:
    """A value is refused with a typed error, or served without hurting the batch it is in."""
    async with open_hashed() as engine:
        limits = engine._host.wiring.limits
        given = msgspec.structs.replace(edge.params(limits), seed=edge.params(limits).seed or 5)
        if isinstance(edge.outcome, type):
            error = await beside_others(engine, lambda: engine.generate(edge.prompt(limits), given), others=3)
            assert type(error) is edge.outcome or isinstance(error, InvalidParameterError)
            return
        params = msgspec.structs.replace(given, max_tokens=min(given.max_tokens or 40, 40))
        prompt = edge.prompt(limits)
        exact(await engine.generate(prompt, params), prompt, params)


async def test_c5_greedy_and_top_k_mixed_in_one_batch() -> None:
    vocabulary = MODEL.vocab_size
    async with open_hashed() as engine:
        kinds = [{"temperature": 0.0}, *({"top_k": k} for k in (vocabulary - 1, vocabulary, 10**7, 0, -1, 5))]
        params = [SamplingParams(seed=i, max_tokens=30, **kind) for i, kind in enumerate(kinds)]
        prompts = [prompt_of(12, seed) for seed in range(len(params))]
        done = await asyncio.gather(*(engine.generate(p, q) for p, q in zip(prompts, params, strict=True)))
        for completion, prompt, param in zip(done, prompts, params, strict=True):
            exact(completion, prompt, param)


@pytest.mark.parametrize("wrong", [{"logprobs": 10**6}, {"top_k": -2}])
async def test_c5_a_number_of_alternatives_nobody_has(wrong: dict[str, int]) -> None:
    async with open_hashed() as engine:
        error = await beside_others(
            engine, lambda: engine.generate(prompt_of(9), SamplingParams(**wrong)), others=2
        )
        assert isinstance(error, InvalidParameterError)


async def test_c6_temperatures_near_zero_mixed_in_one_batch() -> None:
    values = [0.0, -0.0, 1e-10, 1e-6, 1e-5, 1e-4, 1e-3, 0.01]
    async with open_hashed() as engine:
        params = [SamplingParams(temperature=t, seed=3, max_tokens=30, logprobs=0) for t in values]
        prompt = prompt_of(12)
        done = await asyncio.gather(*(engine.generate(prompt, p) for p in params))
        for completion, param in zip(done, params, strict=True):
            exact(completion, prompt, param)
            assert completion.logprobs is not None
            assert all(math.isfinite(entry.logprob) for entry in completion.logprobs)
        assert len({completion.token_ids for completion in done[:4]}) == 1, "below 1e-5 is argmax"


def test_c7_a_log_probability_always_has_a_json_form() -> None:
    def masked(result: StepResult) -> StepResult:
        if result.logprobs is None or result.top_logprobs is None:
            return result
        result.top_logprobs[..., -1] = -np.inf
        result.top_logprobs[..., -2] = np.nan
        return result

    async def main() -> None:
        async with open_scripted(list(range(20, 40)), edit=masked) as engine:
            params = SamplingParams(temperature=0, max_tokens=5, logprobs=3)
            completion = await engine.generate([9], params)
            text = json.dumps(msgspec.to_builtins(completion.logprobs), allow_nan=False)
            assert text.count("-9999.0") == 10

    run_virtual(main())


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", "hot"), ("max_tokens", 1.5), ("seed", 2**65), ("stop", 3), ("stop_token_ids", ("a",))],
)
async def test_c7_a_parameter_of_the_wrong_type(field: str, value: Any) -> None:
    async with open_hashed() as engine:
        params = msgspec.structs.replace(GREEDY, **{field: value})
        with pytest.raises(InvalidParameterError, match=field):
            await engine.generate(prompt_of(5), params)


async def test_c8_an_error_where_one_request_is_queued_ends_that_request() -> None:
    async with open_hashed() as engine:
        core = engine._host.wiring.scheduler.core
        submit = core.submit

        def failing(request: Any, now: float) -> None:
            submit(request, now)
            if request.label == "bad":
                raise LookupError("mine")

        core.submit = failing  # type: ignore[method-assign]
        error = await beside_others(engine, lambda: engine.generate(prompt_of(9), GREEDY, request_id="bad"))
        assert isinstance(error, RequestFailedError)
        assert isinstance(error.__cause__, LookupError)
        assert engine.health().ok


async def test_c8_an_error_in_one_requests_text_ends_that_request() -> None:
    tokenizer = small_tokenizer()
    async with open_scripted(list(range(20, 60))) as engine:
        output = engine._host.wiring.output
        opened = output._opened

        def failing(requests: Any, channel: Any) -> None:
            opened(requests, channel)
            if requests[0].label == "bad":
                live = output._live[requests[0].key]
                live.plain = live.text.push = None  # type: ignore[method-assign, assignment]

        output._opened = failing  # type: ignore[method-assign]
        params = SamplingParams(temperature=0, max_tokens=30, n=2)
        bad = engine.stream([9], params, request_id="bad")
        good = [asyncio.create_task(engine.generate([9], GREEDY)) for _ in range(5)]
        with pytest.raises(RequestFailedError, match="output") as caught:
            [delta async for delta in bad]
        assert isinstance(caught.value.__cause__, TypeError)
        assert {(await task).text for task in good} == {tokenizer.decode([*range(20, 60)])}
        await settle(engine)
        assert engine.health().ok
        assert engine.stats().failed == 2


async def test_c8_no_finite_logit_ends_that_request_alone() -> None:
    model = HashedModel(nonfinite_rate=0.02)
    params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
    async with open_hashed(model) as engine:
        prompts = [prompt_of(20, seed) for seed in range(12)]
        done = await asyncio.gather(*(engine.generate(p, params) for p in prompts), return_exceptions=True)
        failed = [error for error in done if isinstance(error, NotFiniteError)]
        finished = [c for c in done if isinstance(c, Completion)]
        assert 0 < len(failed) < 12
        assert len(failed) + len(finished) == 12
        for result, prompt in zip(done, prompts, strict=True):
            if isinstance(result, Completion):
                exact(result, prompt, params, model)
            elif isinstance(result, NotFiniteError):
                assert result.position == len(prompt) + len(expected(prompt, params, model)[0])
        await settle(engine)


async def test_c8_an_error_of_the_consumer_is_the_consumers() -> None:
    async with open_hashed() as engine:

        async def consume() -> None:
            async for _ in engine.stream(prompt_of(20, 50), GREEDY):
                raise LookupError("mine")

        assert isinstance(await beside_others(engine, consume), LookupError)
        assert engine.stats().aborted == 1


@pytest.mark.parametrize("label", ["forward:5", "sample:5"])
async def test_c8_a_device_error_ends_everybody_with_one_type(label: str) -> None:
    fault = LookupError("mine")
    async with open_hashed(fault=lambda work: fault if work == label else None) as engine:
        streams = [engine.generate(prompt_of(20, seed), GREEDY) for seed in range(8)]
        done = await asyncio.gather(*streams, return_exceptions=True)
        assert {type(error) for error in done} == {EngineFailedError}
        causes = {error.__cause__ for error in done if isinstance(error, EngineFailedError)}
        assert len(causes) == 1
        [cause] = causes
        assert isinstance(cause, DeviceError)
        assert cause.__cause__ is fault
        assert engine.health().state is HealthState.FAILED
        assert "mine" in engine.health().reason


async def test_c8_an_error_of_an_actor_ends_everybody_and_close_returns() -> None:
    async with open_hashed() as engine:
        core = engine._host.wiring.cache_manager.core
        running = [asyncio.create_task(engine.generate(prompt_of(20, s), GREEDY)) for s in range(3)]
        await until(lambda: engine.stats().output_tokens > 0)
        core.reserve = None  # type: ignore[method-assign, assignment]
        done = await asyncio.gather(*running, return_exceptions=True)
        assert {type(error) for error in done} == {EngineFailedError}
        assert "cache_manager" in str(done[0])
        with pytest.raises(EngineFailedError):
            await engine.generate(prompt_of(5), GREEDY)


def test_c9_a_sleeping_reader_holds_only_its_own_output_and_delays_nobody() -> None:
    params = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True, logprobs=2)
    knobs = {"max_sequences": 16, "kv_blocks": 1025, "latency": lambda label: 0.001}

    async def run(sleepers: int) -> float:
        loop = asyncio.get_running_loop()
        async with open_hashed(**knobs) as engine:
            sleeping = [engine.stream(prompt_of(20, seed), params) for seed in range(sleepers)]
            for stream in sleeping:
                await anext(stream)
            begun = loop.time()
            prompts = [prompt_of(20, seed) for seed in range(16 - sleepers)]
            await asyncio.gather(*(engine.generate(p, params) for p in prompts))
            took = loop.time() - begun
            for seed, stream in enumerate(sleeping):
                rest = [delta async for delta in stream]
                assert len(rest) == 1, "everything unread is one delta"
                assert rest[0].logprobs is not None
                assert len(rest[0].logprobs) == len(rest[0].token_ids) == 399
                assert rest[0].token_ids == expected(prompt_of(20, seed), params)[0][1:]
            if sleepers:
                assert engine.stats().coalesced_deltas >= 398
            return took

    assert run_virtual(run(1)) == pytest.approx(run_virtual(run(0)), abs=0.02)


def test_c9_the_policy_abort_closes_a_stream_that_nobody_reads() -> None:
    async def main() -> None:
        async with open_hashed(slow_reader="abort", unread_tokens=50) as engine:
            stream = engine.stream(prompt_of(20), SamplingParams(max_tokens=400, ignore_eos=True))
            await anext(stream)
            await settle(engine)
            with pytest.raises(SlowReaderError, match=r"5[0-9] unread tokens"):
                [delta async for delta in stream]
            assert engine.stats().failed == 1

    run_virtual(main())
