"""A trace sorted by step: when each was planned, launched, computed, collected and committed.

Everything else is concluded from these. Where the device does not time its work, its busy time is inferred:
a step runs from its launch, or from the completion before it, to its own completion; the summary says so.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from stepahead.engine.errors import StepaheadError

from .reader import Span, Trace

COMPUTE = "compute"
_TRIGGERS = frozenset({"commit", "submit", "cancel"})


class NoStepsError(StepaheadError):
    """A trace in which no step reached the device."""

    def __init__(self) -> None:
        super().__init__("the trace holds no step that ran on the device")


class Step(msgspec.Struct):
    """Spans of one step. Missing ones were outside of the trace."""

    number: int
    plan: Span | None = None
    launch_forward: Span | None = None
    launch_sample: Span | None = None
    collect: Span | None = None
    commit: Span | None = None  # the sampler's
    prepare: Span | None = None
    settle: Span | None = None  # the scheduler's: the ledger advances
    work: list[Span] = []  # on the compute stream

    @property
    def work_end(self) -> float:
        return self.work[-1].end

    @property
    def device_time(self) -> float:
        return sum(piece.end - piece.begin for piece in self.work)

    @property
    def rows(self) -> int:
        return self.plan.size if self.plan is not None else 0


class Timeline(msgspec.Struct):
    """Steps that ran, in order, and what the analysis looks up."""

    steps: list[Step]
    by_number: dict[int, Step]
    work: list[Span]  # all pieces on the compute stream, in order
    measured: bool  # the device timed its work
    triggers: list[Span]  # what may have let the scheduler plan, by end

    def trigger_of(self, plan: Span) -> Span | None:
        """The last thing the scheduler did before this plan."""
        at = bisect_right(self.triggers, plan.begin, key=lambda span: span.end)
        return self.triggers[at - 1] if at else None


_PLACES = {
    ("scheduler", "plan"): "plan",
    ("scheduler", "commit"): "settle",
    ("device_worker", "launch forward"): "launch_forward",
    ("device_worker", "launch sample"): "launch_sample",
    ("device_worker", "collect"): "collect",
    ("sampler", "commit"): "commit",
    ("sampler", "prepare"): "prepare",
}


def timeline(trace: Trace) -> Timeline:
    """Raises `NoStepsError`."""
    by_number: dict[int, Step] = {}
    for track, spans in trace.host.items():
        for span in spans:
            place = _PLACES.get((track, span.name))
            if place is not None and span.step >= 0:
                setattr(by_number.setdefault(span.step, Step(span.step)), place, span)
    measured = bool(trace.device.get(COMPUTE))
    work = trace.device[COMPUTE] if measured else _inferred(by_number)
    for piece in work:
        if piece.step >= 0:
            by_number.setdefault(piece.step, Step(piece.step)).work.append(piece)
    steps = sorted((step for step in by_number.values() if step.work), key=lambda step: step.number)
    if not steps:
        raise NoStepsError
    triggers = [span for span in trace.host.get("scheduler", []) if span.name in _TRIGGERS]
    triggers.sort(key=lambda span: span.end)
    return Timeline(steps, by_number, work, measured, triggers)


def _inferred(by_number: dict[int, Step]) -> list[Span]:
    work: list[Span] = []
    free_at = 0.0
    for number in sorted(by_number):
        step = by_number[number]
        if step.launch_forward is None or step.collect is None:
            continue
        begin = max(step.launch_forward.begin, free_at)
        free_at = max(step.collect.begin, begin)
        work.append(Span(begin, free_at, "forward", number))
    return work
