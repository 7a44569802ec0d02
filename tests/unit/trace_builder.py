"""Hand-made timelines of engines whose every gap has a known length and cause.

A script of the overlapped lap (`actors/`), in microseconds, whose delays are arguments. It records as the
actors do, so that what the analysis says can be compared with what the script put in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from stepahead.engine.tracing.encoder import Encoder
from stepahead.engine.tracing.reader import Trace, read_trace
from stepahead.engine.tracing.recorder import Record
from stepahead.engine.tracing.trace_file import TraceFile
from stepahead.engine.tracing.vocabulary import DEVICE_WORK, SpanName

US = 1000
FORWARD, SAMPLE = 900, 100  # what the device needs, us


class Delays(NamedTuple):
    """What goes wrong in one step, us."""

    plan: int = 20
    commit: int = 20
    mailbox: int = 5
    launch: int = 5
    notice: int = 10
    forward: int = FORWARD
    arrival: int | None = None  # the step is planned when a request arrives, this long after the last commit


class ScriptedEngine:
    """One lap after another. The first step is planned at time 0."""

    def __init__(self, *, overlap: bool = True, delays: Mapping[int, Delays] | None = None) -> None:
        self._overlap, self._delays = overlap, delays or {}
        self.records: list[Record] = []
        self._device_free = 0
        self._committed: dict[int, int] = {}  # step -> when the scheduler has settled it
        self._scheduler_free = 0

    def run(self, steps: int) -> list[Record]:
        self._span("scheduler.submit", 0, 10, -1)
        self._scheduler_free = 10
        launched = self._plan_and_launch(0)
        for step in range(steps):
            prepared = self._prepare(step, launched)
            ahead = None
            sampled = self._sample(step, prepared)
            if self._overlap and step + 1 < steps:
                ahead = self._plan_and_launch(step + 1)
            self._commit(step, sampled)
            if not self._overlap and step + 1 < steps:
                ahead = self._plan_and_launch(step + 1)
            launched = ahead or 0
        return self.records

    def _of(self, step: int) -> Delays:
        return self._delays.get(step, Delays())

    def _span(self, name: SpanName, begin: int, length: int, step: int) -> int:
        self.records.append((name, begin * US, (begin + length) * US, step, 0))
        return begin + length

    def _plan_and_launch(self, step: int) -> int:
        """Returns when the forward was launched. Planned after the commit that the mode requires."""
        delay = self._of(step)
        start = self._scheduler_free
        if delay.arrival is not None:
            start = self._span("scheduler.submit", start + delay.arrival, 10, -1)
        planned = self._span("scheduler.plan", start, delay.plan, step)
        self._scheduler_free = planned
        launch = planned + delay.mailbox
        launched = self._span("device_worker.launch_forward", launch, delay.launch, step)
        begin = max(self._device_free, launched)
        self._device_free = begin + delay.forward
        self._work("forward", step, begin, delay.forward)
        return launched

    def _prepare(self, step: int, launched: int) -> int:
        """Follows the commit before at once; the first follows its plan."""
        after = self._committed.get(step - 1, launched)
        return self._span("sampler.prepare", max(after, launched), 2, step)

    def _sample(self, step: int, prepared: int) -> int:
        delay = self._of(step)
        launched = self._span("device_worker.launch_sample", prepared + delay.mailbox, delay.launch, step)
        begin = max(self._device_free, launched)
        self._device_free = begin + SAMPLE
        self._work("sample", step, begin, SAMPLE)
        return self._device_free

    def _commit(self, step: int, sampled: int) -> None:
        delay = self._of(step)
        collected = self._span("device_worker.collect", sampled + delay.notice, 3, step)
        committed = self._span("sampler.commit", collected + delay.mailbox, delay.commit, step)
        self._committed[step] = committed
        begin = max(committed + delay.mailbox, self._scheduler_free)
        self._scheduler_free = self._span("scheduler.commit", begin, 5, step)
        self._span("output.detokenize", self._scheduler_free + 60, 15, step)

    def _work(self, stage: str, step: int, begin: int, length: int) -> None:
        self.records.append((DEVICE_WORK, begin * US, (begin + length) * US, "compute", f"{stage}:{step}"))


def write_trace(path: Path, records: list[Record], **facts: object) -> Path:
    """The records as a complete file."""
    file = TraceFile(path, Encoder(0), dict(facts))
    file.write(records)
    file.close(max((record[1] for record in records), default=0) + 10**6)
    return path


def traced(path: Path, records: list[Record], **facts: object) -> Trace:
    return read_trace(write_trace(path, records, **facts))
