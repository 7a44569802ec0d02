"""Tracing of one engine: the ring it always has, and the files that are written of it on demand.

`Recorder` remembers, `Pump` writes; this file opens and closes files on the engine's loop, never blocking it,
and tells every file what it is a trace of. Nothing here runs per step but `_count`, which reads the engine's
counters a hundred times a second, or at every step while a file is open.

Invariant: every file that was opened is closed when the engine ends, however it ends.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepahead.devices.clock import VirtualClockLoop

from .backend import Backend
from .config import EngineConfig
from .errors import ConfigError, EngineError
from .model.runner import BatchLayout
from .tracing.clock import loop_clock, real_clock
from .tracing.encoder import Encoder
from .tracing.loop_lag import SECONDS_BETWEEN, SECONDS_BETWEEN_WHILE_WRITING, LoopLag
from .tracing.pump import Pump
from .tracing.recorder import Record, Recorder, SilentRecorder
from .tracing.torch_events import torch_events
from .tracing.trace_file import TraceFile
from .tracing.vocabulary import COUNTED

if TYPE_CHECKING:
    from .model.torch_profile import TorchProfile

COUNTERS_EVERY = 10_000_000
"""Nanoseconds between readings of the counters while no file is open."""

FOLLOWED = 8
"""Requests that a file shows step by step, besides those whose callers asked."""

Counts = Callable[[BatchLayout], tuple[tuple[int, ...], ...]]


class TraceError(EngineError):
    """A trace could not be written; the engine goes on."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(f"no trace in {path}: {why}")
        self.path = path


class Tracer:
    """The recorder of one engine, and its files. Made and used on the engine's loop."""

    def __init__(self, backend: Backend, config: EngineConfig, loop: asyncio.AbstractEventLoop) -> None:
        clock = loop_clock(loop) if isinstance(loop, VirtualClockLoop) else real_clock()
        self.recorder = Recorder(clock, config.trace_steps) if config.trace_steps else SilentRecorder(clock)
        self.loop = loop
        self._config = config
        self._device = "a process" if backend.device is None else backend.device.capabilities.name
        self._pump = Pump(self.recorder)
        self._lag = LoopLag(loop, self.recorder)
        self._sessions: set[TraceSession] = set()
        self._followed = 0
        self._counts: Counts | None = None
        self._counters_due = 0
        if self.recorder.enabled:
            backend.runner.time_work(self.recorder.device_work)
            if backend.device is not None:
                backend.device.time_work(self.recorder.device_work)

    def read_counters_by(self, counts: Counts) -> None:
        """`counts(layout of a planned step)` gives the values of `vocabulary.COUNTERS`."""
        if self.recorder.enabled:
            self._counts = counts
            self.recorder.count = self._count

    def session(self, path: Path, *, only: frozenset[int] | None = None, torch: bool = False) -> TraceSession:
        """A file that is not open yet. `only`: the keys of the requests it shows."""
        return TraceSession(self, path, only, torch)

    async def dump(self, path: Path) -> None:
        """Writes what the ring remembers. Raises `TraceError`."""
        self.check_enabled()
        records = self.recorder.snapshot()
        await self.loop.run_in_executor(None, self._write_ring, path, records)

    def dump_in_background(self, folder: str | None) -> Path:
        """The same for an engine that is about to end: a thread writes it while the program goes on."""
        number = self.recorder.clock()
        path = Path(folder or tempfile.gettempdir()) / f"stepahead-stall-{number}.json"
        records = self.recorder.snapshot()
        threading.Thread(target=self._try_write_ring, args=(path, records), name="stepahead-dump").start()
        return path

    def follow(self, asked: bool) -> bool:
        """Whether a new request is shown step by step; `unfollow` it when it has ended."""
        if not self.recorder.enabled or not (asked or (self._pump.busy and self._followed < FOLLOWED)):
            return False
        self._followed += 1
        return True

    def unfollow(self) -> None:
        self._followed -= 1

    def close(self) -> None:
        """The engine has ended: files are closed, without waiting for that."""
        self._lag.close()
        for session in list(self._sessions):
            session.stop()

    def check_enabled(self) -> None:
        if not self.recorder.enabled:
            raise ConfigError("trace_steps", self._config.trace_steps, "at least 1 to trace the engine")

    # For sessions.

    def open_file(self, path: Path, only: frozenset[int] | None) -> tuple[TraceFile, int | None]:
        """Blocking. The file, and the wall time (ns) of its time 0. Raises `TraceError`."""
        origin, anchor = self.recorder.clock(), self.recorder.wall_at_zero
        wall = None if anchor is None else anchor + origin
        encoder = Encoder(origin, detail=FOLLOWED, only=only)
        try:
            return TraceFile(path, encoder, self._facts(wall)), wall
        except OSError as error:
            raise TraceError(path, error) from error

    def added(self, session: TraceSession, file: TraceFile) -> None:
        self._sessions.add(session)
        self._lag.interval = SECONDS_BETWEEN_WHILE_WRITING
        self._pump.open(file)

    def removed(self, session: TraceSession, file: TraceFile) -> threading.Event:
        self._sessions.discard(session)
        if not self._sessions:
            self._lag.interval = SECONDS_BETWEEN
        return self._pump.close(file, session.late_events())

    def _count(self, layout: BatchLayout, now: int) -> int:
        """A step was planned."""
        if now >= self._counters_due and self._counts is not None:
            self._counters_due = now + (0 if self._pump.busy else COUNTERS_EVERY)
            self.recorder.record((COUNTED, now, self._counts(layout)))
            self._lag.arm()
        return now

    def _facts(self, wall: int | None) -> dict[str, object]:
        config = self._config
        return {
            "wall_ns_at_zero": wall,
            "overlap": config.overlap,
            "device": self._device,
            "max_sequences": config.max_sequences,
        }

    def _write_ring(self, path: Path, records: list[Record]) -> None:
        origin = min((record[1] for record in records), default=0)
        anchor = self.recorder.wall_at_zero
        encoder = Encoder(origin, detail=FOLLOWED)
        try:
            file = TraceFile(path, encoder, self._facts(None if anchor is None else anchor + origin))
        except OSError as error:
            raise TraceError(path, error) from error
        file.write(records)
        file.close(max((record[1] for record in records), default=0))
        if file.error is not None:
            raise TraceError(path, file.error)

    def _try_write_ring(self, path: Path, records: list[Record]) -> None:
        try:
            self._write_ring(path, records)
        except TraceError:
            return  # the engine has failed of something else, which is being reported


class TraceSession:
    """One file, from `start` to `stop`; as an async context manager it also waits until it is written."""

    def __init__(self, tracer: Tracer, path: Path, only: frozenset[int] | None, torch: bool) -> None:
        """Use `Engine.trace`."""
        self.path = path
        self._tracer, self._only, self._wants_torch = tracer, only, torch
        self._file: TraceFile | None = None
        self._wall: int | None = None
        self._written: threading.Event | None = None
        self._profile: TorchProfile | None = None

    async def start(self) -> None:
        """Opens the file, off the loop. Raises `TraceError`, or `ConfigError` where tracing is off."""
        self._tracer.check_enabled()
        opening = partial(self._tracer.open_file, self.path, self._only)
        file, self._wall = await self._tracer.loop.run_in_executor(None, opening)
        if self._wants_torch:
            from .model.torch_profile import TorchProfile

            self._profile = TorchProfile()
        self._file = file
        self._tracer.added(self, file)

    def stop(self) -> None:
        """What was recorded so far is still written. Idempotent; does not wait."""
        if self._file is None or self._written is not None:
            return
        if self._profile is not None:
            self._profile.stop()
        self._written = self._tracer.removed(self, self._file)

    async def written(self) -> None:
        """Waits until a stopped file is complete. Raises `TraceError` for what the disk said."""
        assert self._file is not None
        assert self._written is not None
        await self._tracer.loop.run_in_executor(None, self._written.wait)
        if self._file.error is not None:
            raise TraceError(self.path, self._file.error)

    def late_events(self) -> Iterator[bytes]:
        """What is only known after the end. Blocking."""
        if self._profile is not None and self._wall is not None:
            with tempfile.TemporaryDirectory() as folder:
                exported = Path(folder) / "torch.json"
                self._profile.export(exported)
                yield from torch_events(exported, self._wall)

    async def __aenter__(self) -> TraceSession:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.stop()
        await self.written()
