"""The summary of a trace as tables, and two of them side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from ..tracing.gaps import MEANING
from ..tracing.summary import Spread, Summary, WorstStep

_PIPED_WIDTH = 120


class Tables:
    """Prints tables to a terminal, or plainly to a pipe."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        width = None if stream.isatty() else _PIPED_WIDTH
        self._console = Console(file=stream, width=width, highlight=False)

    def line(self, text: str) -> None:
        self._console.print(text)

    def table(self, title: str, header: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> None:
        """`texts`: leading columns that are words, aligned left; and so is a column headed `reason`."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE if self._console.is_terminal else None)
        for number, column in enumerate(header):
            words = number < texts or column in ("reason", "meaning")
            table.add_column(column, justify="left" if words else "right")
        for row in rows:
            table.add_row(*row)
        self._console.print()
        self._console.print(title, style="bold")
        self._console.print(table)


def print_summary(tables: Tables, summary: Summary, name: str) -> None:
    """Everything about one trace."""
    tables.line(f"{name}: {_headline(summary)}")
    for note in _warnings(summary):
        tables.line(f"note: {note}")
    per_step = ("per step, us", "p50", "p99", "max", "share of time")
    total = summary.seconds * 1e6
    times = {
        "step": summary.step_time,
        "device busy": summary.device_time,
        "device idle": summary.idle_gap,
        "host": summary.host_time,
        "host, hidden": summary.host_hidden,
        "host, exposed": summary.host_exposed,
    }
    tables.table("Time", per_step, [_spread_row(label, spread, total) for label, spread in times.items()])
    causes = [
        (*_spread_row(cause, spread, total), MEANING[cause])
        for cause, spread in summary.idle_by_cause.items()
        if spread.total
    ]
    tables.table("Why the device waited", (*per_step, "meaning"), causes)
    actors = [
        _spread_row(actor.replace("_", " "), spread, total)
        for actor, spread in summary.host_by_actor.items()
        if spread.total
    ]
    tables.table("Host time by actor", per_step, actors)
    path = [(who, f"{share:.1%}") for who, share in summary.critical_path.items() if share >= 0.0005]
    tables.table("Critical path", ("waits for", "share"), path)
    lag = summary.loop_lag
    tables.table("Event loop lag, us", ("p50", "p99", "max"), [(_us(lag.p50), _us(lag.p99), _us(lag.max))], 0)
    worst = [_worst_row(step) for step in summary.worst_steps]
    tables.table("Worst steps", ("step", "at ms", "took us", "idle us", "rows", "reason"), worst, 0)


def print_comparison(tables: Tables, names: tuple[str, str], summaries: tuple[Summary, Summary]) -> None:
    """Two traces side by side; the ratio is the second over the first."""
    for name, summary in zip(names, summaries, strict=True):
        tables.line(f"{name}: {_headline(summary)}")
        for note in _warnings(summary):
            tables.line(f"note: {note}")
    first, second = summaries
    rows = [
        _compared("steps per second", first.steps_per_second, second.steps_per_second, "{:,.1f}"),
        _compared("device busy", first.device_busy, second.device_busy, "{:.1%}"),
        _compared("host time hidden", first.hidden_share, second.hidden_share, "{:.1%}"),
        *_spreads("step, us", first.step_time, second.step_time),
        *_spreads("device busy, us", first.device_time, second.device_time),
        *_spreads("device idle, us", first.idle_gap, second.idle_gap),
        *_spreads("host, us", first.host_time, second.host_time),
        *_spreads("host exposed, us", first.host_exposed, second.host_exposed),
        *_spreads("loop lag, us", first.loop_lag, second.loop_lag),
    ]
    tables.table("Compared", ("", *names, "ratio"), rows)
    causes = [
        _compared(who, first.critical_path[who], second.critical_path[who], "{:.1%}")
        for who in first.critical_path
        if first.critical_path[who] or second.critical_path[who]
    ]
    tables.table("Critical path, share of time", ("", *names, "ratio"), causes)


def _worst_row(step: WorstStep) -> tuple[str, ...]:
    at = f"{step.at / 1e3:,.2f}"
    return str(step.step), at, _us(step.duration), _us(step.idle), str(step.rows), step.reason


def _headline(summary: Summary) -> str:
    mode = {True: "overlap on, ", False: "overlap off, ", None: ""}[summary.overlap]
    return (
        f"{mode}{summary.steps:,} steps in {summary.seconds:.3f} s ({summary.steps_per_second:,.1f}/s), "
        f"device busy {summary.device_busy:.1%}, host time hidden {summary.hidden_share:.1%}"
    )


def _warnings(summary: Summary) -> list[str]:
    warnings = [] if summary.complete else ["the file was cut; this is what could be read"]
    if summary.device_times == "inferred":
        warnings.append("the device did not time its work: busy times are from launches and completions")
    return [*warnings, *(f"at {time / 1e3:,.2f} ms: {text}" for time, text in summary.notes)]


def _us(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _spread_row(label: str, spread: Spread, total: float) -> tuple[str, ...]:
    return label, _us(spread.p50), _us(spread.p99), _us(spread.max), f"{spread.total / total:.1%}"


def _spreads(label: str, first: Spread, second: Spread) -> list[tuple[str, ...]]:
    return [
        _compared(f"{label}, p50", first.p50, second.p50, "{:,.1f}"),
        _compared(f"{label}, p99", first.p99, second.p99, "{:,.1f}"),
    ]


def _compared(label: str, first: float, second: float, shape: str) -> tuple[str, ...]:
    ratio = f"{second / first:.2f}x" if first else "-"
    return label, shape.format(first), shape.format(second), ratio
