"""Drives the device: launches steps in order, and turns finished ones into messages.

Plans of the scheduler and permissions to sample of the sampler arrive independently, and the device must see
them strictly alternating: F0 S0 F1 S1. A plan that arrives early waits here for its turn, so nobody else has
to know the order. Nothing in this file waits for the device: its tickets call back on the loop. A device that
hangs would leave everybody waiting for such a call, so a timer watches the step being sampled. Rejected: one
timer per step, a thousand dead ones a second in the loop's heap; this one is armed once per stall limit.

How long steps take is read from the recorder's clock, not the loop's: some loops count whole milliseconds, of
which a decode step on a card takes half of one.

Invariant: F(n+1) is launched as soon as S(n) is launched and plan n+1 is here, and never before; at most one
ticket is outstanding.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from stepahead.devices.device import Ticket
from stepahead.engine.errors import DeviceStalledError
from stepahead.engine.model.runner import Runner, SamplePlan, StepPlan

from .actor import Actor, Address, MailboxClosedError
from .messages import DeviceFailed, SamplingPrepared, StepPlanned, StepSampled

Accepted = StepPlanned | SamplingPrepared | DeviceFailed


class DeviceWorker(Actor[Accepted]):
    """Owns the runner, the launch order, the ticket and the stall timer."""

    name = "device_worker"
    accepts = (StepPlanned, SamplingPrepared, DeviceFailed)

    def __init__(self, runner: Runner, *, stall_seconds: float, capacity: int) -> None:
        """Made on the loop it will run on."""
        super().__init__(capacity)
        self._runner, self._stall_seconds = runner, stall_seconds
        self._loop = asyncio.get_running_loop()
        self._early: deque[StepPlan] = deque()
        self._forwarded: int | None = None  # the step whose forward is launched and whose sampling is not
        self._sampling: int | None = None  # the step whose ticket is outstanding
        self._ticket: Ticket | None = None
        self._late = False  # what follows `_sampling` was launched when that had ended
        self._forwarded_ns = 0  # when the forward of `_forwarded`, and
        self._began_ns = 0  # when that of `_sampling` was launched
        self._ended_ns = 0
        self._launched_at = 0.0
        self._finished_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connect(self, sampler: Address[StepSampled]) -> None:
        self._to_sampler = sampler

    @property
    def seconds_since_step(self) -> float | None:
        """Since the last step ended on the device; None before the first."""
        return None if self._finished_at is None else self._loop.time() - self._finished_at

    def look(self) -> bool:
        """Whether a step has just ended that the loop had not heard of; what follows is under way then.

        For actors that keep the loop busy (`Ticket`): the device must not wait until they have finished.
        """
        return self._ticket is not None and self._ticket.look()

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def handle(self, message: Accepted) -> None:
        match message:
            case StepPlanned(plan=step_plan):
                self._early.append(step_plan)
                self._launch_forward()
            case SamplingPrepared(plan=sample_plan):
                self._launch_sample(sample_plan)
                self._launch_forward()
            case DeviceFailed(error=error):
                raise error

    def _launch_forward(self) -> None:
        if self._early and self._forwarded is None:
            began, plan = self.trace.clock(), self._early.popleft()
            self._late = self._ticket is not None and self._ticket.reached
            self._runner.launch_forward(plan)
            self.trace.span("device_worker.launch_forward", began, plan.step)
            self.trace.measurements.launched(began)
            self._forwarded, self._forwarded_ns = plan.step, began

    def _launch_sample(self, plan: SamplePlan) -> None:
        if plan.step != self._forwarded or self._sampling is not None:
            raise AssertionError(
                f"sampling of step {plan.step} after the forward of step {self._forwarded}, "
                f"with step {self._sampling} outstanding"
            )
        began = self.trace.clock()
        ticket = self._runner.launch_sample(plan)
        self.trace.span("device_worker.launch_sample", began, plan.step)
        self._forwarded, self._sampling, self._began_ns = None, plan.step, self._forwarded_ns
        self._ticket, self._late = ticket, False
        self._launched_at = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._stall_seconds, self._watch_for_stall)
        ticket.on_settled(lambda error: self._settled(ticket, error))

    def _settled(self, ticket: Ticket, error: BaseException | None) -> None:
        """Runs inside a callback of the device, where an exception would reach nobody."""
        began, step = self.trace.clock(), self._sampling
        seconds = (began - max(self._ended_ns, self._began_ns)) / 1e9
        self._sampling = self._ticket = None
        self._ended_ns, self._finished_at = began, self._loop.time()
        try:
            if error is not None:
                self.mailbox.post(DeviceFailed(error=error))
            else:
                result, more = self._runner.collect(ticket), self._forwarded is not None
                waits = self._late or not more
                self._to_sampler.post(StepSampled(result=result, seconds=seconds, device_waits=waits))
                self.trace.span("device_worker.collect", began, -1 if step is None else step)
                self.trace.measurements.settled(began, more_enqueued=more)
        except MailboxClosedError:
            pass  # the engine closed while the device worked
        except Exception as failure:
            self._report(failure)

    def _watch_for_stall(self) -> None:
        self._timer = None
        if self._sampling is None:
            return  # idle: the next launch arms it again
        left = self._launched_at + self._stall_seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._watch_for_stall)
        else:
            self._report(DeviceStalledError(self._sampling, self._stall_seconds))

    def _report(self, error: BaseException) -> None:
        with suppress(MailboxClosedError):
            self.mailbox.post(DeviceFailed(error=error))
