"""What a person wants to know of a trace: did the host hide, if not why, and which steps were bad.

All numbers come from one picture of time: the compute stream is busy or idle, the host's spans overlap its
busy time (hidden) or its idle time (exposed), and each idle moment has one cause. So the shares of the
critical path, device and causes, add up to one. Times are microseconds throughout.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from .gaps import CAUSES, STARVATION, Gap, find_gaps
from .intervals import Intervals, Times, union
from .reader import Span, Trace
from .steps import Step, Timeline, timeline
from .vocabulary import ACTORS, WAITING

WORST = 10
_WAITING_NAMES = {tuple(name.split(".")) for name in WAITING}


class Spread(msgspec.Struct, frozen=True):
    """How a quantity is distributed over steps, microseconds."""

    p50: float
    p99: float
    max: float
    total: float


class WorstStep(msgspec.Struct, frozen=True):
    """A step that took long, and what made it so."""

    step: int
    at: float  # microseconds from the origin of the trace
    duration: float
    idle: float
    rows: int
    reason: str


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One trace in numbers. Durations are microseconds; shares are of the window, 0 to 1."""

    overlap: bool | None  # the engine's knob, where the trace says it
    complete: bool  # the end of the file was seen
    device_times: str  # "measured", or "inferred" from launches and completions
    seconds: float  # from the first work on the device to the last
    steps: int
    steps_per_second: float
    requests: int
    device_busy: float
    step_time: Spread
    device_time: Spread
    idle_gap: Spread
    idle_by_cause: dict[str, Spread]
    host_time: Spread
    host_by_actor: dict[str, Spread]
    host_hidden: Spread
    host_exposed: Spread
    hidden_share: float  # of all host time
    critical_path: dict[str, float]
    loop_lag: Spread
    worst_steps: list[WorstStep]
    notes: list[tuple[float, str]]


def summarise(trace: Trace) -> Summary:
    """Raises `NoStepsError`."""
    line = timeline(trace)
    gaps = find_gaps(line)
    ends = np.array([step.work_end for step in line.steps])
    edges = np.concatenate(([line.work[0].begin], np.maximum.accumulate(ends)))
    busy = union((piece.begin, piece.end) for piece in line.work)
    window = union([(float(edges[0]), float(edges[-1]))])
    actors = {actor: _active(actor, trace.host.get(actor, [])).common(window) for actor in ACTORS}
    host = union(pair for active in actors.values() for pair in _pairs(active))
    hidden = host.common(busy)
    length = max(float(edges[-1] - edges[0]), 1e-9)
    causes = _causes_by_step(line, gaps)
    durations = np.diff(edges)
    return Summary(
        overlap=trace.facts.get("overlap"),
        complete=trace.complete,
        device_times="measured" if line.measured else "inferred",
        seconds=length / 1e6,
        steps=len(line.steps),
        steps_per_second=len(line.steps) / length * 1e6,
        requests=trace.requests,
        device_busy=busy.common(window).length / length,
        step_time=_spread(durations),
        device_time=_spread(np.array([step.device_time for step in line.steps])),
        idle_gap=_spread(sum(causes.values(), np.zeros(len(line.steps)))),
        idle_by_cause={cause: _spread(values) for cause, values in causes.items()},
        host_time=_spread(host.within(edges)),
        host_by_actor={actor: _spread(active.within(edges)) for actor, active in actors.items()},
        host_hidden=_spread(hidden.within(edges)),
        host_exposed=_spread(host.within(edges) - hidden.within(edges)),
        hidden_share=hidden.length / host.length if host.length else 1.0,
        critical_path={
            "device": busy.common(window).length / length,
            **{cause: float(values.sum()) / length for cause, values in causes.items()},
        },
        loop_lag=_spread(_lags(trace)),
        worst_steps=_worst(line, durations, edges, causes),
        notes=trace.notes,
    )


def _active(actor: str, spans: Sequence[Span]) -> Intervals:
    """When an actor worked: its spans, without those in which it only waited."""
    waits = [span for span in spans if (actor, span.name.replace(" ", "_")) in _WAITING_NAMES]
    works = [span for span in spans if (actor, span.name.replace(" ", "_")) not in _WAITING_NAMES]
    return _union(works).without(_union(waits))


def _union(spans: Sequence[Span]) -> Intervals:
    return union((span.begin, span.end) for span in spans)


def _pairs(intervals: Intervals) -> list[tuple[float, float]]:
    return list(zip(intervals.begins.tolist(), intervals.ends.tolist(), strict=True))


def _lags(trace: Trace) -> npt.NDArray[np.float64]:
    return np.array(
        [span.end - span.begin for span in trace.host.get("event_loop", []) if span.name == "lag"]
    )


def _causes_by_step(line: Timeline, gaps: Sequence[Gap]) -> dict[str, npt.NDArray[np.float64]]:
    """Idle time of each step, which ends with its last work, by cause."""
    place = {step.number: index for index, step in enumerate(line.steps)}
    table = {cause: np.zeros(len(line.steps)) for cause in CAUSES}
    for gap in gaps:
        for cause, begin, end in gap.parts:
            table[cause][place.get(gap.step, 0)] += end - begin
    return table


def _spread(values: npt.NDArray[np.float64]) -> Spread:
    if not values.size:
        return Spread(0.0, 0.0, 0.0, 0.0)
    p50, p99 = np.percentile(values, (50, 99)).tolist()
    return Spread(p50, p99, float(values.max()), float(values.sum()))


def _worst(
    line: Timeline, durations: Times, edges: Times, causes: dict[str, npt.NDArray[np.float64]]
) -> list[WorstStep]:
    """The longest steps; time without any work to do makes no step bad."""
    paid = durations - causes[STARVATION]
    median = float(np.median([step.device_time for step in line.steps]))
    worst = np.argsort(-paid, kind="stable")[:WORST].tolist()
    return [
        WorstStep(
            step=line.steps[index].number,
            at=float(edges[index]),
            duration=float(paid[index]),
            idle=float(sum(values[index] for cause, values in causes.items() if cause != STARVATION)),
            rows=line.steps[index].rows,
            reason=_reason(line.steps[index], {cause: v[index] for cause, v in causes.items()}, median),
        )
        for index in worst
    ]


def _reason(step: Step, causes: dict[str, float], median: float) -> str:
    cause, idle = max(
        ((cause, time) for cause, time in causes.items() if cause != STARVATION), key=lambda item: item[1]
    )
    excess = step.device_time - median
    if idle > excess and idle > 0:
        return f"{cause}, {idle:,.0f} us"
    if excess > 0.05 * median:
        return f"device, {step.device_time / max(median, 1e-9):.1f} times the median step"
    return "an ordinary step"
