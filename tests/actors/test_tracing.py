"""Engines that are traced: what the files say of them, and that they are whole however they came about."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from stepahead import ConfigError, DeviceStalledError, Engine, SamplingParams
from stepahead.devices.clock import run_virtual
from stepahead.devices.simulated import HANG
from stepahead.engine.tracer import TraceError
from stepahead.engine.tracing.gaps import STARVATION, UNKNOWN
from stepahead.engine.tracing.reader import events, read_trace
from stepahead.engine.tracing.summary import Summary, summarise
from stepahead.engine.tracing.validation import problems
from tests.actors.hashed_engine import DRAFTING, open_hashed, open_on_cpu, prompt_of, until

FORWARD, SAMPLE = 0.010, 0.001


def _latency(label: str) -> float:
    return FORWARD if label.startswith("forward") else SAMPLE


def _params(seed: int, tokens: int = 20) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens, seed=seed, ignore_eos=True)


async def _work(engine: Engine, requests: int = 6) -> None:
    await asyncio.gather(*(engine.generate(prompt_of(20 + n, n), _params(n)) for n in range(requests)))


def _virtual(path: Path, work: Callable[[Engine], Coroutine[Any, Any, None]] = _work, **knobs: Any) -> Path:
    async def run() -> None:
        async with (
            open_hashed(DRAFTING, latency=_latency, **knobs) as engine,
            engine.trace(path),
        ):
            await work(engine)

    run_virtual(run())
    return path


def _valid(path: Path) -> Summary:
    assert problems(events(path)) == []
    trace = read_trace(path)
    assert trace.complete
    return summarise(trace)


def test_a_trace_in_virtual_time_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    first, second = _virtual(tmp_path / "a.json"), _virtual(tmp_path / "b.json")
    assert first.read_bytes() == second.read_bytes()
    assert _valid(first).requests == 6


def test_what_was_scripted_is_what_the_summary_says(tmp_path: Path) -> None:
    async def in_two_waves(engine: Engine) -> None:
        await _work(engine)
        await asyncio.sleep(0.5)
        await _work(engine)

    summary = _valid(_virtual(tmp_path / "t.json", in_two_waves))
    assert summary.overlap is True
    assert summary.device_times == "measured"
    assert summary.step_time.p50 == summary.device_time.p50 == pytest.approx(11_000)
    # Nobody could need a step behind the last token of either wave: the pause begins with its commit.
    assert summary.idle_by_cause[STARVATION].total == pytest.approx(500_000)
    assert summary.idle_by_cause[UNKNOWN].total == 0.0
    assert summary.device_busy == pytest.approx(1 - 500_000 / (summary.seconds * 1e6))


def test_a_request_tells_its_life(tmp_path: Path) -> None:
    async def one(engine: Engine) -> None:
        stream = engine.stream(prompt_of(70, 1), _params(1), request_id="mine")
        assert [delta async for delta in stream]

    path = _virtual(tmp_path / "t.json", one)
    told = [(event.ph, event.name) for event in events(path) if event.cat == "request"]
    names = [name for _, name in told]
    assert told[0] == ("b", "request 1: mine")
    assert told[-1] == ("e", "request 1: mine")
    assert names.count("prefill") == 2 * 3  # chunks of at most 32 rows, begin and end of each
    assert names[1:3] == ["queued", "queued"]
    assert ("n", "ended: length") in told
    assert names.count("streamed") >= 5
    tokens = sum(event.args.get("tokens", 0) for event in events(path) if event.name == "decode")
    assert tokens == 20 - 1  # the first came with the prompt's last chunk


def test_counters_follow_the_engine(tmp_path: Path) -> None:
    counters = read_trace(_virtual(tmp_path / "t.json")).counters
    assert max(value for _, value in counters["sequences running"]) == 6
    assert {value for _, value in counters["steps uncommitted"]} <= {1, 2}
    assert counters["blocks free"]
    assert max(value for _, value in counters["rows verified"]) == 6 * 4


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
async def test_a_real_device_is_traced_while_it_works(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"t{suffix}"
    async with open_on_cpu(seconds=0.002) as engine:
        await engine.generate(prompt_of(9), _params(0))
        async with engine.trace(path):
            await _work(engine)
        await _work(engine)
    summary = _valid(path)
    assert summary.device_times == "measured"
    assert summary.requests == 6
    assert summary.device_time.p50 > 2000
    assert sum(summary.critical_path.values()) == pytest.approx(1.0, abs=1e-6)


async def test_several_files_at_once_and_one_of_a_single_request(tmp_path: Path) -> None:
    whole, mine = tmp_path / "whole.json", tmp_path / "mine.json"
    async with open_on_cpu(seconds=0.001) as engine, engine.trace(whole):
        others = asyncio.create_task(_work(engine))
        stream = engine.stream(prompt_of(40, 99), _params(99), trace=mine, request_id="me")
        tokens = sum([len(delta.token_ids) async for delta in stream])
        assert _valid(mine).requests == 1
        await others
    assert tokens == 20
    assert {e.name for e in events(mine) if e.name.startswith("request ")} == {"request 1: me"}
    assert _valid(whole).requests == 7


async def test_a_stream_left_early_still_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    async with (
        open_on_cpu(seconds=0.001) as engine,
        engine.stream(prompt_of(9), _params(0, 200), trace=path) as stream,
    ):
        await anext(stream)
    await until(lambda: read_trace(path).complete)
    assert problems(events(path)) == []


def test_the_whole_life_is_written_until_the_engine_has_closed(tmp_path: Path) -> None:
    path = tmp_path / "life.json"

    async def run() -> None:
        async with open_hashed(latency=_latency, trace=path) as engine:
            await _work(engine)

    run_virtual(run())
    assert _valid(path).requests == 6


async def test_the_past_can_be_dumped_at_any_time(tmp_path: Path) -> None:
    async with open_on_cpu(trace_steps=40) as engine:
        await _work(engine)
        await engine.dump_trace(tmp_path / "first.json")
        first = _valid(tmp_path / "first.json")
        await _work(engine, 30)
        async with engine.trace(tmp_path / "other.json"):
            await _work(engine, 10)
            await engine.dump_trace(tmp_path / "second.json")
    second = _valid(tmp_path / "second.json")
    assert first.steps >= 20
    assert 20 <= second.steps < 200
    assert second.worst_steps[0].step > first.steps


def test_a_stall_leaves_a_trace_and_says_where(tmp_path: Path) -> None:
    async def run() -> DeviceStalledError:
        async with open_hashed(
            latency=_latency,
            fault=lambda label: HANG if label == "forward:9" else None,
            stall_seconds=5.0,
            stall_folder=str(tmp_path),
        ) as engine:
            with pytest.raises(DeviceStalledError) as stalled:
                await _work(engine, 1)
            return stalled.value

    error = run_virtual(run())
    for thread in threading.enumerate():
        if thread.name == "stepahead-dump":
            thread.join()
    (path,) = tmp_path.iterdir()
    assert error.__notes__ == [f"a trace of the steps before is in {path}"]
    assert _valid(path).steps == 9


async def test_tracing_switched_off_records_nothing_and_says_so(tmp_path: Path) -> None:
    async with open_hashed(trace_steps=0) as engine:
        await _work(engine)
        with pytest.raises(ConfigError, match="trace_steps"):
            await engine.dump_trace(tmp_path / "t.json")
        with pytest.raises(ConfigError, match="trace_steps"):
            async with engine.trace(tmp_path / "t.json"):
                pytest.fail("a trace that cannot be")
    assert not (tmp_path / "t.json").exists()


async def test_a_file_that_cannot_be_is_the_tracers_error_and_nobody_elses(tmp_path: Path) -> None:
    nowhere = tmp_path / "no folder" / "t.json"
    async with open_hashed() as engine:
        with pytest.raises(TraceError, match="no folder"):
            await engine.trace(nowhere).start()
        with pytest.raises(TraceError, match="no folder"):
            await engine.dump_trace(nowhere)
        with pytest.raises(TraceError, match="no folder"):
            await anext(engine.stream(prompt_of(5), trace=nowhere))
        with pytest.raises(TraceError, match="No space left"):
            async with engine.trace("/dev/full"):
                await _work(engine)
        await _work(engine)
        assert engine.stats().running == 0
    with pytest.raises(TraceError, match="no folder"):
        await open_hashed(trace=nowhere)


async def test_torchs_own_events_join_on_one_clock(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "t.json"
    async with open_on_cpu(seconds=0.001) as engine, engine.trace(path, torch=True):
        before = time.time_ns()
        torch.ones(4).sum()
        after = time.time_ns()
        await _work(engine, 1)
    _valid(path)
    events = json.loads(path.read_bytes())
    sums = [event for event in events if event["name"] == "aten::sum"]
    assert sums
    assert {event["pid"] > 1000 for event in sums} == {True}
    wall_at_zero = read_trace(path).facts["wall_ns_at_zero"]
    millisecond = 10**6
    for event in sums:
        assert before - millisecond < wall_at_zero + event["ts"] * 1000 < after + millisecond
