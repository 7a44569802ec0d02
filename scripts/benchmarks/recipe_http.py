"""The HTTP application under load, beside uvicorn alone: a chunk's cost, the longest hold of the loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import resource
import socket
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn

from stepahead import Delta, FinishReason, Health, HealthState, Usage
from stepahead.recipe.http import create_app
from stepahead.recipe.serve import serve
from stepahead.recipe.server.options import ServerOptions
from tests.protocol.asgi_client import call
from tests.protocol.v4_vocabulary import vocabulary

from .recipe_author import Author

Case = dict[str, Any]

_CLIENTS = Path(__file__).with_name("recipe_clients.py")
_STREAMS, _CHUNKS = 32, 3000
_PACED_STREAMS, _PACED_SECONDS, _TICK = 64, 5, 0.01
_LONG = 2_000_000  # characters
_ROUNDS = 3
_USAGE = Usage(
    prompt_tokens=5,
    cached_tokens=0,
    output_tokens=_CHUNKS,
    drafted_tokens=0,
    accepted_tokens=0,
    preemptions=0,
    queue_seconds=0.0,
    first_token_seconds=0.0,
)
_END = Delta(text="", token_ids=(), index=0, finish_reason=FinishReason.STOP, usage=_USAGE)


class ScriptedEngine:
    """Every request is answered with the same tokens, one a delta.

    The first is sent once `streams` requests are here. With a `tick`, each following one a tick later, to all
    at once, as an engine's step does; without, as fast as the loop turns.
    """

    def __init__(self, token_ids: list[int], streams: int, tick: float = 0) -> None:
        self.tokenizer = vocabulary().tokenizer
        self._deltas = [Delta(text="", token_ids=(token,), index=0) for token in token_ids]
        self._missing, self._tick = streams, tick
        self._all_here, self._next = asyncio.Event(), asyncio.Event()
        self.begun = self.cpu = 0.0

    def stream(self, prompt: Any, params: Any, *, request_id: str, cache_salt: str) -> ScriptedStream:
        return ScriptedStream(self._generate())

    async def _generate(self) -> AsyncGenerator[Delta, None]:
        self._missing -= 1
        if self._missing == 0:
            self.begun, self.cpu = time.perf_counter(), _cpu_seconds()
            self._all_here.set()
        await self._all_here.wait()
        for delta in self._deltas:
            await (self._next.wait() if self._tick else asyncio.sleep(0))
            yield delta
        yield _END

    async def tick(self) -> None:
        """Paces the streams, to be cancelled."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due += self._tick
            await asyncio.sleep(max(0.0, due - loop.time()))
            following, self._next = self._next, asyncio.Event()
            following.set()

    def health(self) -> Health:
        return Health(state=HealthState.READY)

    def stats(self) -> Any:
        raise NotImplementedError


class ScriptedStream:
    def __init__(self, deltas: AsyncGenerator[Delta, None]) -> None:
        self._deltas = deltas

    async def start(self) -> None:
        """Always accepted."""

    def __aiter__(self) -> AsyncGenerator[Delta, None]:
        return self._deltas

    async def aclose(self) -> None:
        await self._deltas.aclose()


def measure_http() -> list[Case]:
    import uvloop

    gc.freeze()  # as `stepahead serve` does: the official codec and two vocabularies are no part of this

    async def measure() -> list[Case]:
        return [await _flat_out(), await _paced(), await _held()]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure())


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _token_ids(count: int) -> list[int]:
    """Plain prose and code: what most chunks are."""
    ids = vocabulary().tokenizer.encode_many([Author().lines(400)], literal=True)[0]
    return (ids * (count // len(ids) + 1))[:count]


async def _flat_out() -> Case:
    ours, raw = [], []
    for _ in range(_ROUNDS):
        engine = ScriptedEngine(_token_ids(_CHUNKS), _STREAMS)
        async with _live(engine) as port:
            await _run_clients(port, _STREAMS)
        ours.append((_cpu_seconds() - engine.cpu) / (_STREAMS * _CHUNKS))
        raw.append(await _raw_seconds())
    rate, raw_rate = 1 / min(ours), 1 / min(raw)
    return {
        "case": f"SSE through the app, {_STREAMS} streams, chunks/s of one core",
        "ours": f"{rate / 1e3:.0f} k",
        "official": f"raw ASGI {raw_rate / 1e3:.0f} k",
        "goal": ">= 100 k",
        "met": rate >= 100e3,
        "microseconds": {"ours": min(ours) * 1e6, "raw": min(raw) * 1e6},
    }


async def _paced() -> Case:
    chunks = round(_PACED_SECONDS / _TICK)
    engine = ScriptedEngine(_token_ids(chunks), _PACED_STREAMS, _TICK)
    ticking = asyncio.ensure_future(engine.tick())
    async with _live(engine) as port:
        await _run_clients(port, _PACED_STREAMS)
        share = (_cpu_seconds() - engine.cpu) / (time.perf_counter() - engine.begun)
    ticking.cancel()
    return {
        "case": f"{_PACED_STREAMS} streams at {1 / _TICK:.0f} tokens/s, share of a core",
        "ours": f"{share:.1%}",
        "goal": "< 20%",
        "met": share < 0.2,
        "share": share,
    }


async def _held() -> Case:
    """The longest time between two turns of the loop while a long prompt is converted and encoded."""
    worst = []
    for number in range(_ROUNDS):
        text = (f"{number}\n" + Author().lines(800) + "\n") * 100
        body = {"model": "stepahead", "messages": [{"role": "user", "content": text[:_LONG]}]}
        app = create_app(ScriptedEngine([5], 1), ServerOptions(context_limit=4_000_000))
        raw = json.dumps(body | {"max_tokens": 1}).encode()
        gaps: list[float] = []
        watching = asyncio.ensure_future(_watch(gaps))
        await asyncio.sleep(0)
        answer = await call(app, "POST", "/v1/chat/completions", raw)
        watching.cancel()
        if answer.status != 200:
            raise RuntimeError(answer.body.decode())
        worst.append(max(gaps))
    return {
        "case": f"loop held by a prompt of {_LONG / 1e6:.0f} MB, the least of {_ROUNDS} rounds",
        "ours": f"{min(worst) * 1e3:.1f} ms",
        "goal": "<= 10 ms",
        "met": min(worst) <= 10e-3,
        "seconds": worst,
    }


async def _watch(gaps: list[float]) -> None:
    before = time.perf_counter()
    while True:
        await asyncio.sleep(0.0005)
        now = time.perf_counter()
        gaps.append(now - before)
        before = now


@contextlib.asynccontextmanager
async def _live(engine: ScriptedEngine) -> AsyncIterator[int]:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = asyncio.ensure_future(serve(engine, ServerOptions(), port=0, on_ready=ready.set_result))
    try:
        yield int((await ready).rsplit(":", 1)[1])
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def _run_clients(port: int, streams: int) -> None:
    arguments = (sys.executable, str(_CLIENTS), str(port), str(streams))
    process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    if process.returncode or int(output) < streams:
        raise RuntimeError("the clients failed")


async def _raw_seconds() -> float:
    """CPU time of a chunk that uvicorn sends for an application which does nothing else."""
    all_here, missing = asyncio.Event(), _STREAMS
    begun = 0.0
    data = b'{"id":"chatcmpl-%b","object":"chat.completion.chunk","choices":[%b]}' % (b"0" * 32, b"x" * 130)
    chunk = {"type": "http.response.body", "body": b"data: %b\n\n" % data, "more_body": True}

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal missing, begun
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        missing -= 1
        if missing == 0:
            begun = _cpu_seconds()
            all_here.set()
        await all_here.wait()
        for _ in range(_CHUNKS):
            await asyncio.sleep(0)
            await send(dict(chunk))
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http="httptools", lifespan="off", log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    await _run_clients(listener.getsockname()[1], _STREAMS)
    seconds = (_cpu_seconds() - begun) / (_STREAMS * _CHUNKS)
    server.should_exit = True
    await serving
    listener.close()
    return seconds
