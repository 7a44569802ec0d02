"""Decides when to plan: as soon as a step may exist, with never more than one unfinished behind it.

All decisions are in `SchedulingCore`; this file drives it by messages, asks the cache manager what the core
demands, and tells everybody what came of it. Callers beyond the queue's capacity wait here, in order, under
the policy `wait`; the queue itself stays bounded.

A commit is news for the device, which needs the next plan, and for the streams, which need their text; on one
loop one of them goes first. So the output actor hears of a commit from here, behind the plan. Rejected:
telling both at once, after which a plan that asks the cache waits behind streams and their readers, twice.

Invariant: after every message either no step can be planned, or a message will come after which one may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Literal

from stepahead.engine.cache.reservation import Grant, Publication
from stepahead.engine.errors import QueueFullError, RequestFailedError
from stepahead.engine.scheduling.delivery import DeliveryPace
from stepahead.engine.scheduling.planner import Planned, SchedulingCore
from stepahead.engine.types import FinishReason

from .actor import BURST, Actor, Address, Reply
from .group import Group, SingleRank
from .messages import (
    AllRequestsCancelled,
    BlocksFilled,
    DeadlineReached,
    DrainRequested,
    PauseChanged,
    PrefixCacheResetRequested,
    RequestCancelled,
    RequestSubmitted,
    ReservationRequested,
    SequencesAdmitted,
    SequencesClosed,
    StepCommitted,
    StepPlanned,
)
from .outside_queue import OutsideQueue

Accepted = (
    RequestSubmitted
    | RequestCancelled
    | AllRequestsCancelled
    | PauseChanged
    | DrainRequested
    | PrefixCacheResetRequested
    | DeadlineReached
    | StepCommitted
)


class Scheduler(Actor[Accepted]):
    """Owns the scheduling core, the callers that wait for room in its queue, and the deadline timer."""

    name = "scheduler"
    accepts = (
        RequestSubmitted,
        RequestCancelled,
        AllRequestsCancelled,
        PauseChanged,
        DrainRequested,
        PrefixCacheResetRequested,
        DeadlineReached,
        StepCommitted,
    )

    def __init__(
        self,
        core: SchedulingCore,
        *,
        queue_capacity: int,
        queue_policy: Literal["wait", "reject"],
        capacity: int,
        group: Group | None = None,
    ) -> None:
        """Made on the loop it will run on. Without a group it is a rank of its own."""
        super().__init__(capacity)
        self.core = core
        self._group = group or SingleRank()
        self.outside = OutsideQueue()
        self._queue_capacity, self._rejects = queue_capacity, queue_policy == "reject"
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_for_quiet: list[Reply[None]] = []
        self._waiting_for_end: list[DrainRequested] = []
        self._untold: list[StepCommitted] = []  # the newest commits, of which no stream knows yet
        self._pace = DeliveryPace()
        self._unplanned = 0  # messages handled since the last attempt to plan

    def connect(
        self,
        cache_manager: Address[ReservationRequested | BlocksFilled | PrefixCacheResetRequested],
        device_worker: Address[StepPlanned],
        sampler: Address[StepPlanned],
        output: Address[StepCommitted | SequencesAdmitted | SequencesClosed | DrainRequested],
    ) -> None:
        self._to_cache, self._to_device = cache_manager, device_worker
        self._to_sampler, self._to_output = sampler, output

    async def run(self) -> None:
        try:
            await super().run()
        finally:
            if self._timer is not None:
                self._timer.cancel()

    async def handle(self, message: Accepted) -> None:
        match message:
            case StepCommitted():
                self._committed(message)
            case RequestSubmitted():
                self._submitted(message)
            case RequestCancelled(sequence_keys=keys, reason=reason):
                self._cancelled(keys, reason)
            case AllRequestsCancelled():
                self._cancelled((*self.core.cancel_all(), *self.outside.keys()), FinishReason.ABORT)
            case DeadlineReached():
                self._deadline_reached()
            case PauseChanged(paused=paused, reply=reply):
                self.core.paused = paused
                self._waiting_for_quiet.append(reply)
            case DrainRequested():
                self._waiting_for_end.append(message)
            case PrefixCacheResetRequested():
                self._to_cache.post(message)
        self._let_in()
        if self._is_time_to_plan(message):
            await self._plan_ahead()
        if self._untold and not self._may_wait(self._untold[-1]):
            self._tell_streams()
        self._answer()

    # Requests come and go.

    def _submitted(self, message: RequestSubmitted) -> None:
        began = self.trace.clock()
        if not self.outside and self._has_room(len(message.requests)):
            self._queue(message)
        elif self._rejects:
            error = QueueFullError(self.core.counts().waiting, self.core.estimate_seconds())
            self._close([request.key for request in message.requests], error=error)
            message.reply.fail(error)
        else:
            self.outside.push(message)
            self._watch_deadlines()
        self.trace.span("scheduler.submit", began)

    def _has_room(self, sequences: int) -> bool:
        return self.core.counts().waiting + sequences <= self._queue_capacity

    def _let_in(self) -> None:
        while self.outside and self._has_room(self.outside.next_size):
            self._queue(self.outside.pop())

    def _queue(self, message: RequestSubmitted) -> None:
        """Queues all choices of a request. What goes wrong here is this request's error alone."""
        now = self._loop.time()
        try:
            for request in message.requests:
                self.core.submit(request, now)
        except Exception as error:
            failure = RequestFailedError("scheduler")
            failure.__cause__ = error
            for request in message.requests:
                self.core.cancel(request.key)
            self._close([request.key for request in message.requests], error=failure)
        self._watch_deadlines()
        message.reply.send(None)

    def _cancelled(self, keys: Iterable[int], reason: FinishReason | None) -> None:
        began, keys = self.trace.clock(), tuple(keys)
        for key in keys:
            if not self.core.cancel(key):
                self.outside.remove(key)
        if reason is not None:
            self._close(keys, reason=reason)
        self.trace.span("scheduler.cancel", began)

    def _close(
        self, keys: Iterable[int], *, reason: FinishReason | None = None, error: Exception | None = None
    ) -> None:
        self._tell_streams()
        self._to_output.post(SequencesClosed(sequence_keys=tuple(keys), reason=reason, error=error))

    # Deadlines.

    def _deadline_reached(self) -> None:
        began, now = self.trace.clock(), self._loop.time()
        self._timer = None
        expired = (*self.core.expire(now), *self.outside.expire(now))
        if expired:
            self._close(expired, reason=FinishReason.DEADLINE)
        self._watch_deadlines()
        self.trace.span("scheduler.cancel", began)

    def _watch_deadlines(self) -> None:
        """Keeps one timer, at the earliest deadline; firing for a sequence that ended does no harm."""
        known = [
            time for time in (self.core.next_deadline(), self.outside.next_deadline()) if time is not None
        ]
        if not known or (self._timer is not None and self._timer.when() <= min(known)):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(min(known), self.mailbox.post, DeadlineReached())

    # Steps.

    def _committed(self, message: StepCommitted) -> None:
        began, commit = self.trace.clock(), message.commit
        news = self.core.commit(commit, self._loop.time(), message.seconds)
        self._publish(news.publications)
        self._untold.append(message)
        self._pace.observe(message.device_waits and self.core.uncommitted > 0)
        self.trace.span("scheduler.commit", began, commit.step)

    def _is_time_to_plan(self, message: Accepted) -> bool:
        """After a commit, always; else once the mailbox is empty, so that a burst shares its first step."""
        self._unplanned += 1
        if isinstance(message, StepCommitted) or not len(self.mailbox) or self._unplanned >= BURST:
            self._unplanned = 0
            return True
        return False

    async def _plan_ahead(self) -> None:
        core, trace = self.core, self.trace
        while core.paused or core.uncommitted <= core.limits.depth:
            if not await self._group.agree(core.has_work):
                break
            began = trace.clock()
            planned = core.repeat(self._loop.time()) or await self._plan()
            if planned is None:
                break
            self._announce(planned)
            plan = planned.plan
            trace.count(plan.layout, trace.span("scheduler.plan", began, plan.step, plan.layout.rows))
        if not core.uncommitted:
            trace.measurements.starved()

    async def _plan(self) -> Planned | None:
        """Drives the core's generator: a demand that asks is waited for, others are only passed on."""
        planning = self.core.plan(self._loop.time())
        grant: Grant | None = None
        try:
            while True:
                demand = planning.send(grant)
                reply: Reply[Grant] | None = Reply() if demand.asks else None
                self._to_cache.post(ReservationRequested(demand=demand, reply=reply))
                grant = None if reply is None else await self._granted(reply)
        except StopIteration as end:
            planned: Planned | None = end.value
            return planned

    async def _granted(self, reply: Reply[Grant]) -> Grant:
        asked = self.trace.clock()
        grant = await reply
        self.trace.span("scheduler.await_cache", asked)
        return grant

    def _announce(self, planned: Planned) -> None:
        step = StepPlanned(plan=planned.plan, admitted=planned.admitted)
        self._to_device.post(step)
        self._to_sampler.post(step)
        self._publish(planned.publications)
        if planned.admitted:
            self._tell_streams()  # before a sequence in them is said to be admitted again
            self._to_output.post(
                SequencesAdmitted(
                    sequence_keys=tuple(occupant.request.key for occupant in planned.admitted),
                    cached_tokens=planned.cached_tokens,
                    resumed=planned.resumed,
                    replays=tuple(occupant.forced >= 0 for occupant in planned.admitted),
                )
            )

    def _may_wait(self, newest: StepCommitted) -> bool:
        """Whether streams hear of this commit with the next one. First tokens and ends are told at once."""
        commit, core = newest.commit, self.core
        goes_on = not commit.any_finish and commit.layout.decode_count == commit.layout.slots.size
        follows = core.uncommitted > 0 and core.limits.overlap
        return follows and goes_on and self._pace.may_wait(len(self._untold), newest.seconds)

    def _tell_streams(self) -> None:
        for message in self._untold:
            self._to_output.post(message)
        self._untold.clear()

    def _publish(self, publications: tuple[Publication, ...]) -> None:
        if publications:
            self._to_cache.post(BlocksFilled(publications=publications))

    # Answers.

    def _answer(self) -> None:
        if self._waiting_for_quiet and (not self.core.paused or not self.core.uncommitted):
            _send_all(self._waiting_for_quiet)
        if self._waiting_for_end and not (self.core.has_work or self.core.uncommitted or self.outside):
            for message in self._waiting_for_end:
                self._to_output.post(message)  # which has the last commits before it
            self._waiting_for_end.clear()


def _send_all(replies: list[Reply[None]]) -> None:
    for reply in replies:
        reply.send(None)
    replies.clear()
