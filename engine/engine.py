"""The engine as an embedder sees it: open, generate, look, close. It decides nothing.

An engine lives inside somebody else's program. So it belongs to the loop it was opened in and to nothing
else: no process, signal handler, event-loop policy or global is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

from stepahead.actors.messages import AllRequestsCancelled
from stepahead.devices.device import Device

from . import batches
from .backend import Backend, Opener, model_opener
from .best_of import widened
from .config import EngineConfig
from .errors import InvalidParameterError
from .host import Host
from .intake import Submission
from .opening import Opening, check_no_loop
from .prompts import Prompt
from .stream import Stream
from .tracer import TraceSession
from .types import Completion, Health, Retention, SamplingParams, Stats


class Engine:
    """One model on one device, serving one event loop. Made by `Engine.open`."""

    @classmethod
    def open(
        cls,
        model: str | Path | None = None,
        config: EngineConfig | None = None,
        *,
        device: str | Device = "cpu",
        opener: Opener | None = None,
        trace: str | Path | None = None,
    ) -> Opening[Engine]:
        """Opens the model in a checkpoint folder; None is the small model that ships with Stepahead.

        Use as `async with Engine.open(...) as engine`, as `engine = await Engine.open(...)` with a later
        `close`, or, in a script without a loop, as `with Engine.open(...) as engine` for `generate_sync`.
        `device` is a kind ("cpu", "cuda", "cuda:1") or an open device, which the engine then closes; `opener`
        replaces both.
        `trace` writes the engine's whole life to a file, see `Engine.trace`.
        Raises `ConfigError` for knobs that model or device cannot honour, and other kinds of `EngineError`.
        """
        chosen, knobs = opener or model_opener(model, device), config or EngineConfig()

        async def open_here() -> Engine:
            engine = cls(await chosen(knobs), knobs)
            if trace is not None:
                await engine._trace_life(Path(trace))
            return engine

        return Opening(open_here)

    def __init__(self, backend: Backend, config: EngineConfig) -> None:
        """Use `Engine.open`."""
        self.config = config
        self.tokenizer = backend.tokenizer
        self._host = Host(backend, config)
        self.offline: asyncio.Runner | None = None  # the private loop of a script, see `Opening`
        self._life: TraceSession | None = None

    # Generating.

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        cache_salt: str | bytes = b"",
        session: str = "",
        retention: Retention = "chat",
        trace: bool | str | Path = False,
    ) -> Stream:
        """Output of one request as it is generated: an async generator of `Delta`.

        `prompt` is text, token ids, or messages (`role` and `content`). `request_id` is a label for `abort`
        and results; it need not be unique. A higher `priority` is served first. `deadline` is a time on the
        loop's clock (`loop.time() + seconds`) at which the stream ends with what there is. Requests with
        different `cache_salt` never share cached prompts. `session` names a conversation whose turns continue
        each other: the cache lets go of a turn's state first once the next has its own. `retention` "agent"
        keeps a prompt longer than those of chats, for a caller that comes back after its tools. `trace`
        writes a trace of the engine while this request is in, the request step by step, to that path (True:
        `stepahead-request-KEY.json` in the working folder). Errors are raised by the first `anext`.
        """
        submission = Submission(
            prompt=prompt,
            params=params or SamplingParams(),
            request_id=request_id,
            priority=priority,
            deadline=deadline,
            cache_salt=cache_salt,
            session=session,
            retention=retention,
            trace=trace,
        )
        return Stream(self._host.wiring.intake, submission)

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        deadline: float | None = None,
        cache_salt: str | bytes = b"",
        session: str = "",
        retention: Retention = "chat",
    ) -> Completion:
        """The whole answer of a request with one choice (`generate_many` serves n > 1)."""
        if params is not None and params.n != 1:
            raise InvalidParameterError("n", params.n, "1 here; generate_many and stream give every choice")
        finished = self._completions(
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            deadline=deadline,
            cache_salt=cache_salt,
            session=session,
            retention=retention,
        )
        async with contextlib.aclosing(finished):
            return await anext(finished)

    def generate_many(
        self,
        prompts: Iterable[Prompt] | AsyncIterable[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        concurrency: int | None = None,
        progress: bool = False,
        priority: int = 0,
        cache_salt: str | bytes = b"",
    ) -> AsyncIterator[Completion]:
        """Completions of many prompts as they finish; `Completion.request_id` is the prompt's index as text.

        `params` are shared, or one per prompt. At most `concurrency` prompts (by default twice the engine's
        sequences) are in the engine at a time; others are not even drawn from the iterable. The first error
        is raised and cancels the rest.
        """

        def answer(index: int, prompt: Prompt) -> AsyncGenerator[Completion, None]:
            own = params if params is None or isinstance(params, SamplingParams) else params[index]
            label = str(index)
            return self._completions(prompt, own, request_id=label, priority=priority, cache_salt=cache_salt)

        readers = concurrency or 2 * self.config.max_sequences
        return batches.many_completions(prompts, answer, readers, progress)

    def _completions(
        self, prompt: Prompt, params: SamplingParams | None, *, request_id: str | None, **options: Any
    ) -> AsyncGenerator[Completion, None]:
        """The choices of one request, those that `best_of` leaves."""
        every = widened(params)
        stream = self.stream(prompt, every or params, request_id=request_id, **options)
        if every is None or params is None:
            return batches.completions(stream, request_id)
        return batches.best_completions(stream, request_id, params)

    def generate_sync(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[Completion]:
        """Completions of many prompts, in their order (and choice order within), for code without a loop.

        For scripts (`with Engine.open() as engine`), and for other threads of a program whose engine runs in
        a loop. Raises `LoopRunningError` on a thread whose loop it would block.
        """
        check_no_loop("generate_sync", "generate or generate_many")

        async def generate_all() -> list[Completion]:
            return [completion async for completion in self.generate_many(prompts, params, progress=progress)]

        if self.offline is not None:
            done = self.offline.run(generate_all())
        else:
            done = asyncio.run_coroutine_threadsafe(generate_all(), self._host.loop).result()
        return sorted(done, key=lambda completion: (int(completion.request_id or 0), completion.index))

    # Running.

    def abort(self, request_id: str) -> int:
        """Ends every request with this label (its stream gets `FinishReason.ABORT`); returns how many."""
        self._host.check()
        return self._host.wiring.intake.abort(request_id)

    def abort_all(self) -> None:
        """Ends every request, waiting or running."""
        self._host.check()
        self._host.wiring.scheduler.mailbox.post(AllRequestsCancelled())

    async def pause(self) -> None:
        """Stops planning; returns when the device is idle. Requests may still be submitted, and wait."""
        await self._host.pause(True)

    async def resume(self) -> None:
        """Goes on where `pause` stopped."""
        await self._host.pause(False)

    async def drain(self) -> None:
        """Refuses new requests from now on; returns when the last one has ended."""
        await self._host.drain()

    async def reset_prefix_cache(self) -> None:
        """Forgets cached prompts that no running sequence uses; later hits start from nothing."""
        await self._host.reset_prefix_cache()

    async def close(self) -> None:
        """Ends every stream with `EngineClosedError` and frees everything. Idempotent; bounded in time."""
        await self._host.close()
        if self._life is not None:
            life, self._life = self._life, None
            await life.written()

    # Looking.

    def stats(self) -> Stats:
        """Totals since the engine opened, and the present state."""
        return self._host.wiring.stats()

    def trace(self, path: str | Path, *, torch: bool = False) -> TraceSession:
        """Writes what happens inside `async with engine.trace("run.json")` to a file for ui.perfetto.dev.

        `python -m stepahead trace run.json` summarises and draws it. `.json.gz` is compressed. `torch` adds
        what `torch.profiler` sees of operators and kernels, which slows them down. Files stop at 1 GiB.
        Raises `TraceError` when the file cannot be written, at its begin or its end.
        """
        self._host.check()
        return self._host.wiring.tracer.session(Path(path), torch=torch)

    async def dump_trace(self, path: str | Path) -> None:
        """Writes the last `EngineConfig.trace_steps` steps, which are always remembered, to a file.

        For when something was slow just now. Raises `TraceError`.
        """
        await self._host.wiring.tracer.dump(Path(path))

    def health(self) -> Health:
        """Whether the engine can serve, and if not, why. Usable from any thread."""
        return self._host.health()

    async def _trace_life(self, path: Path) -> None:
        session = self.trace(path)
        try:
            await session.start()
        except BaseException:
            await self.close()
            raise
        self._life = session
