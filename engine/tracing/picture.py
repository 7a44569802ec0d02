"""What a drawing of a window shows, before anybody draws it: rows, bars, shaded gaps, and the words.

The question a drawing answers at a glance is whether the host's work for step n+1 lies above the device's
work for step n. So rows are actors above and streams below, a colour is a step, and the time in which the
device waits is shaded through all rows and says for what.
"""

from __future__ import annotations

import msgspec

from stepahead.engine.errors import StepaheadError

from .gaps import STARVATION, find_gaps
from .reader import Span, Trace
from .steps import COMPUTE, Timeline, timeline
from .summary import Summary, summarise
from .vocabulary import ACTORS

STEPS_SHOWN = 5
PALETTE = ("#4c78a8", "#f0a23b", "#59a14f", "#9d6fb3")
STEPLESS_COLOUR = "#9a9a9a"
SHADE_COLOUR = "#d62728"
STARVED_COLOUR = "#bbbbbb"


class UnknownMarkError(StepaheadError):
    """A mark for a span that the window does not show."""

    def __init__(self, span: str) -> None:
        super().__init__(f"the window shows no span {span!r} to put a mark on")


class EmptyWindowError(StepaheadError):
    """A window in which the trace has no work of the device."""

    def __init__(self, begin: float, end: float, last: float) -> None:
        super().__init__(
            f"nothing ran on the device between {begin / 1e3:g} and {end / 1e3:g} ms; "
            f"the trace ends at {last / 1e3:g} ms"
        )


class Bar(msgspec.Struct, frozen=True):
    """An interval in a row; times in microseconds."""

    row: int
    begin: float
    end: float
    name: str
    step: int

    @property
    def label(self) -> str:
        return self.name if self.step < 0 else f"{self.name} {self.step}"

    @property
    def colour(self) -> str:
        return STEPLESS_COLOUR if self.step < 0 else PALETTE[self.step % len(PALETTE)]


class Shade(msgspec.Struct, frozen=True):
    """The device waits."""

    begin: float
    end: float
    cause: str  # the one that took longest

    @property
    def colour(self) -> str:
        return STARVED_COLOUR if self.cause == STARVATION else SHADE_COLOUR


class Mark(msgspec.Struct, frozen=True):
    """A sign at the begin of a bar, that the text around the drawing speaks of."""

    row: int
    at: float
    sign: str


class Picture(msgspec.Struct, frozen=True):
    """A window of a trace, microseconds from `begin` to `end`."""

    title: str
    subtitle: str
    rows: list[str]
    host_rows: int  # how many of them are actors
    bars: list[Bar]
    shades: list[Shade]
    begin: float
    end: float
    marks: list[Mark] = []


def typical_window(trace: Trace, steps: int = STEPS_SHOWN) -> tuple[float, float]:
    """A few steps in a row that together took the median time of so many, neither the best nor the worst."""
    line = timeline(trace)
    runs = [line.steps[first : first + steps] for first in range(max(len(line.steps) - steps + 1, 1))]
    runs.sort(key=lambda run: run[-1].work_end - run[0].work[0].begin)
    shown = runs[len(runs) // 2]
    return _around(line, shown[0].work[0].begin, shown[-1].work_end)


def step_window(trace: Trace, first: int, last: int) -> tuple[float, float]:
    """Steps `first` to `last`, both shown. Raises `EmptyWindowError`."""
    line = timeline(trace)
    shown = [step for step in line.steps if first <= step.number <= last]
    if not shown:
        raise EmptyWindowError(0.0, 0.0, line.steps[-1].work_end)
    return _around(line, shown[0].work[0].begin, shown[-1].work_end)


def _around(line: Timeline, begin: float, end: float) -> tuple[float, float]:
    margin = (end - begin) / 40
    return max(begin - margin, line.work[0].begin - margin, 0.0), end + margin


def draw_window(trace: Trace, begin: float, end: float, title: str = "") -> Picture:
    """What to draw of `begin` to `end`, microseconds. Raises `EmptyWindowError`, `NoStepsError`."""
    line, summary = timeline(trace), summarise(trace)
    tracks = [(actor, trace.host.get(actor, [])) for actor in ACTORS]
    shown = [(actor.replace("_", " "), spans) for actor, spans in tracks if _visible(spans, begin, end)]
    streams = trace.device if line.measured else {f"{COMPUTE} (inferred)": line.work}
    below = [(f"device: {name}", spans) for name, spans in streams.items() if _visible(spans, begin, end)]
    if not below:
        raise EmptyWindowError(begin, end, line.work[-1].end)
    bars = [
        Bar(row, max(span.begin, begin), min(span.end, end), span.name, span.step)
        for row, (_, spans) in enumerate([*shown, *below])
        for span in _visible(spans, begin, end)
    ]
    shades = [
        Shade(max(gap.begin, begin), min(gap.end, end), _main_cause(gap.parts))
        for gap in find_gaps(line)
        if gap.begin < end and gap.end > begin
    ]
    rows = [name for name, _ in [*shown, *below]]
    return Picture(title or _title(summary), _subtitle(summary), rows, len(shown), bars, shades, begin, end)


def marked(picture: Picture, signs: dict[str, str]) -> Picture:
    """The picture with signs on spans, named as labelled, after their row if need be: "sampler: commit 12".

    Raises `UnknownMarkError`.
    """
    marks = []
    for span, sign in signs.items():
        row, colon, label = span.rpartition(": ")
        named = (bar for bar in picture.bars if bar.label == label)
        bar = next((bar for bar in named if not colon or picture.rows[bar.row] == row), None)
        if bar is None:
            raise UnknownMarkError(span)
        marks.append(Mark(bar.row, bar.begin, sign))
    return msgspec.structs.replace(picture, marks=marks)


def _visible(spans: list[Span], begin: float, end: float) -> list[Span]:
    return [span for span in spans if span.begin < end and span.end > begin]


def _main_cause(parts: list[tuple[str, float, float]]) -> str:
    lengths: dict[str, float] = {}
    for cause, begin, end in parts:
        lengths[cause] = lengths.get(cause, 0.0) + end - begin
    return max(lengths, key=lambda cause: lengths[cause])


def _title(summary: Summary) -> str:
    mode = {True: "overlap on", False: "overlap off", None: "overlap timeline"}[summary.overlap]
    return f"{mode}: the device is busy {summary.device_busy:.1%} of the time"


def _subtitle(summary: Summary) -> str:
    step, host, exposed = summary.step_time.p50, summary.host_time.p50, summary.host_exposed.p50
    return (
        f"median step {step / 1e3:.2f} ms; host work {host / 1e3:.2f} ms a step, "
        f"{exposed / 1e3:.2f} ms of it while the device waits; {summary.hidden_share:.0%} hidden"
    )
