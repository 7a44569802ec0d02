"""Why the device waited: each idle interval, split by what the next piece of work was waiting for.

Walking back from the piece that ends the gap along what it depended on, every moment of the gap belongs to
the last thing that had not happened yet. The chain: the launch of the piece, the message that asked for it,
the plan (of a forward) or the preparation (of a sampling), the commit that allowed those, the message that
brought the commit's result, the completion that the host learned of late. A chain that ends at an arrival
leaves the rest of the gap to starvation: there was nothing to compute. Rejected: blaming whatever actor was
busy during the gap, which may have nothing to do with it.

Invariant: the parts of a gap add up to its length.
"""

from __future__ import annotations

import msgspec

from .reader import Span
from .steps import Step, Timeline
from .vocabulary import FORWARD_STAGES

PLAN_LATE = "plan late"
COMMIT_LATE = "commit late"
MAILBOX = "mailbox"
LAUNCH = "launch"
SYNCHRONISATION = "synchronisation"
STARVATION = "starvation"
UNKNOWN = "unknown"
CAUSES = (PLAN_LATE, COMMIT_LATE, MAILBOX, LAUNCH, SYNCHRONISATION, STARVATION, UNKNOWN)

MEANING = {
    PLAN_LATE: "the scheduler was still planning the step",
    COMMIT_LATE: "the step before was still being committed",
    MAILBOX: "the message that asks for the next thing waited for its actor's turn",
    LAUNCH: "the call that enqueues, and what the device needs to start",
    SYNCHRONISATION: "the device was done and the host did not know yet",
    STARVATION: "no sequence had anything to compute",
    UNKNOWN: "what the work waited for is not in the trace",
}


class Gap(msgspec.Struct):
    """The compute stream was idle before a piece of `step`; times in microseconds."""

    begin: float
    end: float
    step: int
    parts: list[tuple[str, float, float]]  # (cause, begin, end), latest first

    def seconds_of(self, cause: str) -> float:
        """Microseconds of this cause."""
        return sum(end - begin for name, begin, end in self.parts if name == cause)


def find_gaps(timeline: Timeline) -> list[Gap]:
    """All idle intervals between the first and the last piece of work."""
    gaps = []
    free_at = timeline.work[0].end
    for piece in timeline.work[1:]:
        if piece.begin > free_at:
            gaps.append(_explain(timeline, piece, free_at))
        free_at = max(free_at, piece.end)
    return gaps


class _Walk:
    """Goes back through a gap, giving each part to a cause."""

    def __init__(self, begin: float, end: float) -> None:
        self._begin, self._cursor = begin, end
        self.parts: list[tuple[str, float, float]] = []

    @property
    def done(self) -> bool:
        return self._cursor <= self._begin

    def back_to(self, time: float, cause: str) -> None:
        """From `time` to where we are, it was `cause`."""
        start = max(time, self._begin)
        if start < self._cursor:
            self.parts.append((cause, start, self._cursor))
            self._cursor = start

    def over(self, span: Span, cause: str) -> None:
        """The work waited for this span, and for the message behind it."""
        self.back_to(span.end, MAILBOX)
        self.back_to(span.begin, cause)


def _explain(timeline: Timeline, piece: Span, free_at: float) -> Gap:
    walk = _Walk(free_at, piece.begin)
    step = timeline.by_number.get(piece.step)
    if step is not None:
        if piece.name in FORWARD_STAGES:
            _through_forward(timeline, step, walk)
        else:
            _through_sample(timeline, step, walk)
    walk.back_to(free_at, UNKNOWN)
    return Gap(free_at, piece.begin, piece.step, walk.parts)


def _through_forward(timeline: Timeline, step: Step, walk: _Walk) -> None:
    if step.launch_forward is not None:
        walk.back_to(step.launch_forward.begin, LAUNCH)
    if step.plan is not None and not walk.done:
        walk.over(step.plan, PLAN_LATE)
        _through_trigger(timeline, step.plan, walk)


def _through_trigger(timeline: Timeline, plan: Span, walk: _Walk) -> None:
    trigger = timeline.trigger_of(plan)
    if walk.done:
        return
    if trigger is None:
        return
    walk.over(trigger, COMMIT_LATE if trigger.name == "commit" else PLAN_LATE)
    if trigger.name != "commit":
        walk.back_to(float("-inf"), STARVATION)
        return
    committed = timeline.by_number.get(trigger.step)
    if committed is not None:
        _through_commit(committed, walk)


def _through_commit(step: Step, walk: _Walk) -> None:
    if step.commit is not None and not walk.done:
        walk.over(step.commit, COMMIT_LATE)
    if step.collect is not None and not walk.done:
        walk.over(step.collect, SYNCHRONISATION)
    if step.work and not walk.done:
        walk.back_to(step.work_end, SYNCHRONISATION)


def _through_sample(timeline: Timeline, step: Step, walk: _Walk) -> None:
    if step.launch_sample is not None:
        walk.back_to(step.launch_sample.begin, LAUNCH)
    if step.prepare is None or walk.done:
        return
    walk.over(step.prepare, COMMIT_LATE)
    before, plan = timeline.by_number.get(step.number - 1), step.plan
    planned_at = float("-inf") if plan is None else plan.end
    if before is not None and before.commit is not None and before.commit.end >= planned_at:
        _through_commit(before, walk)
    elif plan is not None:  # the plan came after that commit: the pipe was empty
        walk.over(plan, PLAN_LATE)
        _through_trigger(timeline, plan, walk)
