"""Decides what each sampled step means, and lets the next one be sampled.

The device samples with tables of parameters indexed by slot, and a slot may change hands between a step and
the next. So commits and table updates must take turns: resolve step n with the table of step n, then admit
the newcomers of n+1, then permit S(n+1). One actor doing both in one handler is that order.

Invariant: SamplingPrepared(n+1) leaves after the commit of n and after plan n+1 arrived, whichever is later.
"""

from __future__ import annotations

from collections import deque

from stepahead.engine.model.runner import RunnerShape
from stepahead.engine.sampling.commit import resolve
from stepahead.engine.sampling.table import SamplingTable

from .actor import Actor, Address
from .messages import SamplingPrepared, StepCommitted, StepPlanned, StepSampled

Accepted = StepPlanned | StepSampled


class Sampler(Actor[Accepted]):
    """Owns the sampling table, the outputs counted so far, and the order of commits."""

    name = "sampler"
    accepts = (StepPlanned, StepSampled)

    def __init__(self, shape: RunnerShape, *, capacity: int) -> None:
        super().__init__(capacity)
        self._table = SamplingTable(shape)
        self._uncommitted: deque[StepPlanned] = deque()  # the oldest is prepared, the others wait

    def connect(
        self,
        device_worker: Address[SamplingPrepared],
        scheduler: Address[StepCommitted],
    ) -> None:
        self._to_device, self._to_scheduler = device_worker, scheduler

    async def handle(self, message: Accepted) -> None:
        match message:
            case StepPlanned():
                self._uncommitted.append(message)
                if len(self._uncommitted) == 1:
                    self._prepare(message)
            case StepSampled():
                self._commit(message)

    def _prepare(self, planned: StepPlanned) -> None:
        began = self.trace.clock()
        plan = self._table.prepare(planned.plan.layout, planned.admitted, planned.plan.step)
        self._to_device.post(SamplingPrepared(plan=plan))
        self.trace.span("sampler.prepare", began, plan.step)

    def _commit(self, sampled: StepSampled) -> None:
        began, planned, result = self.trace.clock(), self._uncommitted.popleft(), sampled.result
        if planned.plan.step != result.step:
            raise AssertionError(f"result of step {result.step} while step {planned.plan.step} is the oldest")
        committed = StepCommitted(
            commit=resolve(planned.plan.layout, result, self._table, planned.plan.scored),
            seconds=sampled.seconds,
            device_waits=sampled.device_waits,
        )
        self.trace.span("sampler.commit", began, result.step)
        if self._uncommitted:
            self._prepare(self._uncommitted[0])  # first of all: the device waits for it, nobody for the rest
        self._to_scheduler.post(committed)
