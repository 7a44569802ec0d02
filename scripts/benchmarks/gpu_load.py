"""A steady load on an engine, and what its own tracer says about the device meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from itertools import pairwise, product
from pathlib import Path

import msgspec
import numpy as np

from stepahead import Engine, SamplingParams
from stepahead.engine.tracing.reader import Trace, read_trace
from stepahead.engine.tracing.steps import COMPUTE
from stepahead.engine.tracing.summary import summarise

OPENINGS = (
    "Once upon a time",
    "Tom was a cat who",
    "In a village by the sea",
    "The old king said:",
    "Why did",
    "One day, Mia found",
    "A little bird",
    "Far away, behind the hills,",
    "My friend told me that",
    "Every night",
)
SUBJECTS = (
    "there was a small house",
    "the rain would not stop",
    "a boy and his dog went out",
    "she opened the door",
    "nobody knew the answer",
    "the bread was still warm",
    "they heard a strange sound",
    "he lost his red hat",
    "the lights went out",
    "it began to snow",
    "two friends",
    "the moon",
    "a long road",
    "in the garden",
    "with a loud voice",
    "and then",
    "who was very tired",
    "because of the wind",
    "under the bridge",
    "again",
)


def prompts(count: int) -> list[str]:
    """Different ones, of the kind that the built-in model knows."""
    made = [f"{opening} {subject}" for opening, subject in product(OPENINGS, SUBJECTS)]
    return [made[i % len(made)] + ("" if i < len(made) else f" {i}") for i in range(count)]


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """One engine under one load. Milliseconds, microseconds and shares as the names say."""

    sequences: int
    seconds: float
    tokens_per_second: float
    steps_per_second: float
    tokens_per_sequence_step: float
    device_step_ms: float
    busy: float
    idle_p50_us: float
    idle_p99_us: float
    lag_p99_ms: float
    lag_max_ms: float
    hidden: float  # share of the host's time that lies under the device's
    causes: dict[str, float]  # of idle time, share of the window
    host_us: dict[str, float]  # median of each actor's time in a step
    pieces_us: dict[str, tuple[float, float]]  # medians: how long, and the wait before it

    @property
    def tokens_per_user(self) -> float:
        return self.tokens_per_second / self.sequences


class _Count:
    tokens = 0


@contextlib.asynccontextmanager
async def loaded(
    engine: Engine, asked: Sequence[str | list[int]], params: SamplingParams
) -> AsyncIterator[_Count]:
    """A stream for every prompt, read by a task and started anew when it ends; entered once all decode."""
    seen, started = _Count(), set[int]()

    async def read(number: int, prompt: str | list[int]) -> None:
        while True:
            async for delta in engine.stream(prompt, params):
                started.add(number)
                seen.tokens += len(delta.token_ids)

    readers = [asyncio.create_task(read(i, prompt)) for i, prompt in enumerate(asked)]
    try:
        while len(started) < len(asked):
            await asyncio.sleep(0.01)
            for reader in readers:
                if reader.done():
                    reader.result()
        yield seen
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def steady(
    engine: Engine,
    count: int,
    *,
    seconds: float,
    temperature: float = 0.0,
    settle: float = 0.2,
    file: Path | None = None,
    asked: Sequence[str | list[int]] = (),
) -> Steady:
    """Measure for so long, with streams of `asked` (texts of ours); what the tracer remembers is read
    afterwards (and left in `file`), since a thread that writes meanwhile would take turns with the loop for
    the interpreter.
    """
    params = SamplingParams(temperature=temperature, ignore_eos=True, seed=1)
    with tempfile.TemporaryDirectory() as folder:
        path = file or Path(folder) / "trace.json"
        async with loaded(engine, asked or prompts(count), params) as seen:
            await asyncio.sleep(settle)
            gc.collect()
            gc.disable()
            try:
                tokens, steps, began = seen.tokens, engine.stats().steps, time.perf_counter()
                lags = await _lags(seconds)
                tokens, steps = seen.tokens - tokens, engine.stats().steps - steps
                taken = time.perf_counter() - began
            finally:
                gc.enable()
            await engine.dump_trace(path)
        trace = _last(read_trace(path), taken * 1e6)
    summary = summarise(trace)
    return Steady(
        sequences=count,
        seconds=taken,
        tokens_per_second=tokens / taken,
        steps_per_second=steps / taken,
        tokens_per_sequence_step=tokens / max(steps, 1) / count,
        device_step_ms=summary.device_time.p50 / 1e3,
        busy=summary.device_busy,
        idle_p50_us=summary.idle_gap.p50,
        idle_p99_us=summary.idle_gap.p99,
        lag_p99_ms=1e3 * float(np.quantile(lags, 0.99)),
        lag_max_ms=1e3 * max(lags),
        hidden=summary.hidden_share,
        causes={cause: share for cause, share in summary.critical_path.items() if share > 0.001},
        host_us={actor: spread.p50 for actor, spread in summary.host_by_actor.items()},
        pieces_us=_pieces(trace),
    )


async def _lags(seconds: float) -> list[float]:
    """How late the loop ran what was due, looked at every millisecond, seconds."""
    loop = asyncio.get_running_loop()
    lags, end = [], loop.time() + seconds
    while (now := loop.time()) < end:
        await asyncio.sleep(0.001)
        lags.append(loop.time() - now - 0.001)
    return lags


def _last(trace: Trace, microseconds: float) -> Trace:
    """The end of a trace, from a step's begin on."""
    work = trace.device[COMPUTE]
    begin = work[-1].end - microseconds
    first = next((piece.step for piece in work if piece.begin >= begin and piece.name == "forward"), 0)
    return msgspec.structs.replace(
        trace,
        host={name: [s for s in spans if s.begin >= begin] for name, spans in trace.host.items()},
        device={name: [s for s in spans if s.step >= first] for name, spans in trace.device.items()},
    )


def _pieces(trace: Trace) -> dict[str, tuple[float, float]]:
    """Of each kind of piece the median duration, and the median wait of the device before it."""
    durations, waits = dict[str, list[float]](), dict[str, list[float]]()
    for before, piece in pairwise(trace.device[COMPUTE]):
        durations.setdefault(piece.name, []).append(piece.end - piece.begin)
        waits.setdefault(piece.name, []).append(piece.begin - before.end)
    return {
        name: (float(np.median(times)), float(np.median(waits[name]))) for name, times in durations.items()
    }
