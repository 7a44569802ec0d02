"""Runs a script on a whole engine in virtual time and writes down everything anybody hears."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import msgspec

from stepahead import Delta, Engine, FinishReason, Usage
from stepahead.devices.clock import run_virtual
from stepahead.engine.config import RequestLimits
from stepahead.engine.errors import EngineError
from stepahead.engine.sizing import request_limits
from stepahead.engine.types import TokenLogprob

from .backend import ScriptedBackend
from .budgets import force_budgets
from .inspection import Inspector, settled
from .script import Client, Event, Script

LONGEST_SECONDS = 1e5
"""Virtual time after which a run counts as hung; the slowest reader needs far less."""


class Choice(msgspec.Struct):
    """What one choice's deltas said so far."""

    tokens: list[int] = []
    text: str = ""
    logprobs: list[TokenLogprob] = []
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    reason: FinishReason | None = None
    usage: Usage | None = None


class Heard(msgspec.Struct):
    """What one client heard, and how it ended."""

    choices: dict[int, Choice] = {}
    error: BaseException | None = None
    ended: bool = False  # the stream ended by itself
    left: bool = False  # the client left first
    ended_at: float = 0.0
    complaints: list[str] = []


class Run(msgspec.Struct):
    """Everything the judge needs."""

    script: Script
    limits: RequestLimits
    heard: list[Heard]
    complaints: list[str]
    failed: bool  # the scripted fault happened
    closed_early: bool
    counts: dict[str, int]  # how much of what happened


def drive(script: Script) -> Run:
    """Raises what an invariant, the loop or the engine raises where nothing may raise."""
    with warnings.catch_warnings(), _unraisable() as lost:
        warnings.simplefilter("error")
        runs: list[Run] = []
        run_virtual(_drive(script, runs))
        (run,) = runs
        if run.failed or script.close_at is not None:
            gc.collect()  # what a broken engine leaves must not complain either
    run.complaints += lost
    return run


@contextlib.contextmanager
def _unraisable() -> Iterator[list[str]]:
    """Errors in finalizers, which Python otherwise only prints."""
    lost: list[str] = []
    before = sys.unraisablehook
    sys.unraisablehook = lambda info: lost.append(f"in a finalizer: {info.exc_value!r} of {info.object!r}")
    try:
        yield lost
    finally:
        sys.unraisablehook = before


async def _drive(script: Script, runs: list[Run]) -> None:
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(f"to the loop: {context}"))
    before = asyncio.all_tasks()
    async with asyncio.timeout(LONGEST_SECONDS):
        backend = ScriptedBackend(script)
        engine = await Engine.open(config=script.knobs.config(), opener=backend.open)
        run = await _Driver(script, engine, backend, complaints).run()
        await engine.close()
    complaints += backend.late_steps()
    left = asyncio.all_tasks() - before
    if left:
        complaints.append(f"tasks are left behind: {left}")
    if engine.health().ok:
        complaints.append("a closed engine calls itself healthy")
    runs.append(run)


class _Driver:
    def __init__(
        self, script: Script, engine: Engine, backend: ScriptedBackend, complaints: list[str]
    ) -> None:
        self.script, self.engine, self.backend, self.complaints = script, engine, backend, complaints
        self.loop = asyncio.get_running_loop()
        self.inspector = Inspector(engine)
        if script.device.budgets:
            force_budgets(engine, script.device.budgets)
        self.heard = [Heard() for _ in script.clients]
        self.closed_early = False

    async def run(self) -> Run:
        await asyncio.sleep(0.0)
        await asyncio.sleep(0.0)  # the engine's task has started its actors
        idle = asyncio.all_tasks()
        tasks = [self.loop.create_task(self._client(i)) for i in range(len(self.heard))]
        tasks += [self.loop.create_task(self._event(event)) for event in self.script.events]
        if self.script.close_at is not None:
            tasks.append(self.loop.create_task(self._close_at(self.script.close_at)))
        await asyncio.gather(*tasks)
        tasks.clear()
        if not (self.backend.fault_happened or self.closed_early):
            await self._come_to_rest(idle)
        stats = self.engine.stats()
        wiring = self.engine._host.wiring
        facts, shape = wiring.device_worker._runner.facts, wiring.device_worker._runner.shape
        return Run(
            script=self.script,
            limits=request_limits(self.script.knobs.config(), facts, shape),
            heard=self.heard,
            complaints=self.complaints,
            failed=self.backend.fault_happened,
            closed_early=self.closed_early,
            counts={
                "steps": stats.steps,
                "sequences": stats.finished + stats.aborted + stats.failed,
                "preemptions": stats.preemptions,
                "cached tokens": stats.cached_tokens,
                "accepted drafts": stats.accepted_tokens,
                "rejected drafts": stats.drafted_tokens - stats.accepted_tokens,
                "saved rows": stats.speculation.rows_saved,
                "steps without drafts": stats.speculation.steps_without_drafts,
                "cut short": stats.aborted,
                "failed": stats.failed,
                "coalesced": stats.coalesced_deltas,
            },
        )

    async def _come_to_rest(self, idle: set[asyncio.Task[Any]]) -> None:
        """Nothing is submitted any more: everything must come back by itself, and soon."""
        device, rows = self.script.device, self.script.knobs.max_step_rows
        step = device.forward + device.row * rows + device.sample
        patience = 10 * (1 + self.script.device.jitter) * step + 1e-3
        deadline = self.loop.time() + patience
        while (unsettled := settled(self.engine)) is not None:
            if self.backend.fault_happened:
                return  # only now: no client was left to hear of it
            if self.loop.time() > deadline:
                self.complaints.append(f"does not come to rest within {patience:g} s: {unsettled}")
                break
            await asyncio.sleep(patience / 20)
        more = asyncio.all_tasks() - idle
        if more:
            self.complaints.append(f"an idle engine has more tasks than before: {more}")
        if not any(event.kind == "drain" for event in self.script.events):
            self.heard.append(await self._once_more())
        if not self.backend.fault_happened:
            self.inspector.check()

    async def _once_more(self) -> Heard:
        """One fresh request after everything; judged as the script's last client."""
        heard = Heard()
        try:
            await self._read(FRESH, heard, self.engine.stream(FRESH.prompt, FRESH.params()))
        except Exception as error:
            heard.error = error
        heard.ended_at = self.loop.time()
        return heard

    # Clients.

    async def _client(self, index: int) -> None:
        client, heard = self.script.clients[index], self.heard[index]
        await asyncio.sleep(client.at)
        reading = self.loop.create_task(self._reading(client, heard, f"client-{index}"))
        if client.leave == "cancel":
            await asyncio.wait({reading}, timeout=client.after_seconds)
            heard.left = not heard.ended and reading.cancel()
        elif client.leave == "abort":
            await asyncio.wait({reading}, timeout=client.after_seconds)
            with contextlib.suppress(EngineError):
                self.engine.abort(f"client-{index}")
        try:
            await reading
        except asyncio.CancelledError:
            if not heard.left:
                raise
        except BaseException as error:
            heard.error = error
        heard.ended_at = self.loop.time()

    async def _reading(self, client: Client, heard: Heard, label: str) -> None:
        deadline = None if client.deadline is None else self.loop.time() + client.deadline
        stream = self.engine.stream(
            client.prompt,
            client.params(),
            request_id=label,
            priority=client.priority,
            deadline=deadline,
            cache_salt=client.salt,
            session=client.session,
            retention=client.retention,
        )
        if client.leave == "never_start":
            heard.left = True
            if client.after_deltas:
                await stream.aclose()
            return
        if client.leave != "timeout":
            await self._read(client, heard, stream)
            return
        try:
            async with asyncio.timeout(client.after_seconds):
                await self._read(client, heard, stream)
        except TimeoutError:
            heard.left = True

    async def _read(self, client: Client, heard: Heard, stream: Any) -> None:
        leaves = client.leave in ("break", "drop")
        deltas = 0
        if leaves and not client.after_deltas:
            await stream.start()
        while not (leaves and deltas >= client.after_deltas):
            try:
                delta = await anext(stream)
            except StopAsyncIteration:
                heard.ended = True
                await self._after_the_end(heard, stream)
                return
            deltas += 1
            self._take(heard, delta)
            if client.pause:
                await asyncio.sleep(client.pause)
        heard.left = True
        if client.leave == "break":
            await stream.aclose()

    def _take(self, heard: Heard, delta: Delta) -> None:
        choice = heard.choices.setdefault(delta.index, Choice())
        if choice.reason is not None:
            heard.complaints.append(f"choice {delta.index} goes on after its end: {delta}")
        if not (delta.token_ids or delta.text or delta.finish_reason):
            heard.complaints.append(f"an empty delta: {delta}")
        if (delta.finish_reason is None) != (delta.usage is None):
            heard.complaints.append(f"usage and finish reason come together: {delta}")
        if delta.prompt_logprobs is not None:
            if choice.tokens or choice.text or delta.index:
                heard.complaints.append(f"the prompt's logprobs come late, or with another choice: {delta}")
            choice.prompt_logprobs = tuple(delta.prompt_logprobs)
        choice.tokens += delta.token_ids
        choice.text += delta.text
        choice.logprobs += delta.logprobs or ()
        choice.reason, choice.usage = delta.finish_reason, delta.usage

    async def _after_the_end(self, heard: Heard, stream: Any) -> None:
        with contextlib.suppress(StopAsyncIteration):
            heard.complaints.append(f"a delta after the end: {await anext(stream)}")
        await stream.aclose()

    # The application.

    async def _event(self, event: Event) -> None:
        await asyncio.sleep(event.at)
        try:
            await self._apply(event)
        except EngineError as error:
            expected = self.closed_early or self.script.close_at is not None or self.script.device.fault_at
            if not expected:
                self.complaints.append(f"{event} raised {error!r}")

    async def _apply(self, event: Event) -> None:
        match event.kind:
            case "pause":
                await self.engine.pause()
                core = self.engine._host.wiring.scheduler.core
                steps = core._steps
                await asyncio.sleep(event.seconds)
                overlapping = sum(other.kind == "pause" for other in self.script.events) > 1
                if not overlapping and (core._steps != steps or core.uncommitted):
                    self.complaints.append("a paused engine takes steps")
                await self.engine.resume()
            case "reset":
                await self.engine.reset_prefix_cache()
            case "abort_all":
                self.engine.abort_all()
            case "drain":
                await self.engine.drain()
            case "stats":
                self.engine.stats()

    async def _close_at(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.closed_early = True
        await self.engine.close()


FRESH = Client(prompt=(3, 4, 5), max_tokens=5, temperature=1.0, seed=1)
"""What is asked of every engine that has survived a script."""
