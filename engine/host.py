"""The background task of one engine: it runs the actors, and its last act ends everything else.

The actors must not run in the caller's task, whose cancellation would become theirs, nor in a task group that
spans a caller's `yield`. So they run in a task of the loop. However that task ends (`close`, a failure, the
loop being torn down with the engine still open), it leaves nobody waiting and nothing allocated.

Invariant: once the task has ended, every stream, submission and question has an answer, and the device is
closed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import anyio

from stepahead.actors.actor import ActorFailedError, MailboxClosedError, Reply
from stepahead.actors.messages import DrainRequested, PauseChanged, PrefixCacheResetRequested

from . import events
from .backend import Backend
from .config import EngineConfig
from .errors import DeviceStalledError, EngineClosedError, EngineError, EngineFailedError
from .types import Health, HealthState
from .wiring import Wiring

Asking = PauseChanged | DrainRequested | PrefixCacheResetRequested


class Host:
    """Runs the actors from its construction, on the running loop, until `close` or a failure."""

    def __init__(self, backend: Backend, config: EngineConfig) -> None:
        self._backend = backend
        self._failure: ActorFailedError | None = None
        self._stall_folder = config.stall_folder
        self._dump: Path | None = None  # the trace of a stall
        self._paused = self._draining = False
        self._replies: set[Reply[None]] = set()
        self.wiring = Wiring(backend, config, self._failed)
        self.loop = asyncio.get_running_loop()
        self._task = self.loop.create_task(self._run(), name="stepahead-engine")
        events.info(
            "engine opened",
            overlap=config.overlap,
            max_sequences=config.max_sequences,
            graphs=0 if (captured := backend.runner.captured) is None else captured.graphs,
        )

    @property
    def state(self) -> HealthState:
        if self._failure is not None:
            return HealthState.FAILED
        if self._task.done():
            return HealthState.CLOSED
        if self._draining:
            return HealthState.DRAINING
        return HealthState.PAUSED if self._paused else HealthState.READY

    def health(self) -> Health:
        failure = self._failure
        return Health(
            state=self.state,
            reason="" if failure is None else f"{failure.name}: {failure.__cause__!r}",
            seconds_since_step=self.wiring.device_worker.seconds_since_step,
        )

    async def pause(self, paused: bool) -> None:
        """Returns when planning has stopped and the device is idle, or when planning goes on."""
        await self._ask(PauseChanged(paused=paused, reply=Reply()))
        self._paused = paused

    async def drain(self) -> None:
        """Refuses new requests at once; returns when the last one has ended."""
        self.check()
        self._draining = True
        self.wiring.intake.refuse(lambda: EngineClosedError("draining"))
        await self._ask(DrainRequested(reply=Reply()))

    async def reset_prefix_cache(self) -> None:
        await self._ask(PrefixCacheResetRequested(reply=Reply()))

    async def close(self) -> None:
        """Returns when the task has ended. Idempotent; raises what freeing a working device raised."""
        if self.loop.is_closed():
            return  # the task ended with its loop
        self.wiring.intake.check_loop()
        self.wiring.intake.refuse(EngineClosedError)
        self.wiring.supervisor.stop()
        with anyio.CancelScope(shield=True):
            await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.result()

    def check(self) -> None:
        """Raises `WrongLoopError`, or what the engine ended with."""
        self.wiring.intake.check_loop()
        if self.state in (HealthState.FAILED, HealthState.CLOSED):
            raise self._ending()

    async def _ask(self, message: Asking) -> None:
        self.check()
        self._replies.add(message.reply)
        try:
            await self.wiring.scheduler.mailbox.send(message)
            await message.reply
        except MailboxClosedError:
            raise self._ending() from None
        finally:
            self._replies.discard(message.reply)

    def _failed(self, failure: ActorFailedError) -> None:
        """Called by the supervisor, once, before the other actors stop."""
        self._failure = failure
        if isinstance(failure.__cause__, DeviceStalledError) and self.wiring.tracer.recorder.enabled:
            self._dump = self.wiring.tracer.dump_in_background(self._stall_folder)
        events.error("engine failed", actor=failure.name, cause=repr(failure.__cause__), trace=self._dump)
        self.wiring.intake.refuse(self._ending)

    def _ending(self) -> EngineError:
        """The error of everybody who waits when the engine ends; made anew for each of them."""
        if self._failure is None:
            return EngineClosedError()
        cause = self._failure.__cause__
        if isinstance(cause, DeviceStalledError):
            stalled = DeviceStalledError(cause.step, cause.seconds)
            if self._dump is not None:
                stalled.add_note(f"a trace of the steps before is in {self._dump}")
            return stalled
        error = EngineFailedError(self._failure.name)
        error.__cause__ = cause
        return error

    async def _run(self) -> None:
        try:
            await self.wiring.supervisor.run()
        finally:
            self.wiring.intake.end(self._ending)
            for reply in self._replies:
                reply.fail(self._ending())
            self._free()

    def _free(self) -> None:
        self.wiring.tracer.close()
        events.info("engine closed", failed=self._failure is not None)
        try:
            self._backend.close()
        except Exception:
            if self._failure is None:
                raise  # a device that failed before may well fail again
