"""What a trace says: did the host's work hide behind the device, if not why, and a drawing of it.

Reads files written by `Engine.trace`, also those that a crash cut. Times in tables are microseconds.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import StepaheadError

if TYPE_CHECKING:
    from ..tracing.picture import Picture
    from ..tracing.reader import Trace
    from ._trace_tables import Tables

HELP = "summarise, check, compare and draw a trace"


class InvalidTraceError(StepaheadError):
    """A trace that breaks its own rules."""

    def __init__(self, path: Path, problems: list[str]) -> None:
        more = f"\n  and {len(problems) - 10} more" if len(problems) > 10 else ""
        super().__init__(f"{path} is not valid:\n  " + "\n  ".join(problems[:10]) + more)


class UsageError(StepaheadError):
    """Arguments that do not go together."""


class FileProblemError(StepaheadError):
    """A file that cannot be read or written."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"{error.filename}: {error.strerror}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", type=Path, help="a trace (.json, .json.gz)")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two traces side by side")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument("--check", action="store_true", help="only check that the trace keeps its rules")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw a window (needs matplotlib)")
    parser.add_argument("--html", type=Path, metavar="FILE", help="draw a window as an HTML page")
    parser.add_argument("--steps", metavar="A:B", help="draw steps A to B (default: five typical ones)")
    parser.add_argument("--window", metavar="A:B", help="draw from A to B milliseconds")
    parser.add_argument(
        "--mark", action="append", default=[], metavar="SPAN=SIGN", help='put a sign on a span: "plan 12=1"'
    )
    parser.add_argument("--torch", type=Path, metavar="PROFILE", help="merge an export of torch.profiler ...")
    parser.add_argument("--out", type=Path, metavar="FILE", help="... into this trace")


def run(arguments: argparse.Namespace) -> int:
    if (arguments.file is None) == (arguments.compare is None):
        raise UsageError("give one trace, or --compare A B")
    try:
        return _compare(arguments) if arguments.file is None else _one(arguments)
    except OSError as error:
        raise FileProblemError(error) from error


def _one(arguments: argparse.Namespace) -> int:
    from ..tracing.reader import read_trace
    from ._trace_tables import Tables

    trace = read_trace(arguments.file)
    if arguments.check:
        _check(arguments.file)
        return 0
    if arguments.torch is not None:
        _merge(arguments)
        return 0
    if arguments.png is not None or arguments.html is not None:
        _draw(arguments, trace)
        return 0
    _summarise(arguments, trace, Tables(sys.stdout))
    return 0


def _check(path: Path) -> None:
    from ..tracing.reader import events
    from ..tracing.validation import problems

    found = problems(events(path))
    if found:
        raise InvalidTraceError(path, found)
    print(f"{path}: spans balance and nest, tracks do not overlap, arrows resolve")


def _summarise(arguments: argparse.Namespace, trace: Trace, tables: Tables) -> None:
    from ..tracing.summary import summarise
    from ._trace_tables import print_summary

    summary = summarise(trace)
    if arguments.json:
        _print_json(summary)
    else:
        print_summary(tables, summary, arguments.file.name)


def _compare(arguments: argparse.Namespace) -> int:
    from ..tracing.reader import read_trace
    from ..tracing.summary import summarise
    from ._trace_tables import Tables, print_comparison

    first, second = arguments.compare
    summaries = summarise(read_trace(first)), summarise(read_trace(second))
    if arguments.json:
        _print_json(dict(zip((str(first), str(second)), summaries, strict=True)))
    else:
        print_comparison(Tables(sys.stdout), (first.name, second.name), summaries)
    return 0


def _print_json(value: object) -> None:
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=1).decode())


def _draw(arguments: argparse.Namespace, trace: Trace) -> None:
    from ..tracing.picture import marked

    signs = dict(_pair(text) for text in arguments.mark)
    picture = marked(_picture(arguments, trace), signs)
    if arguments.png is not None:
        from ..tracing.png import save_png

        save_png(picture, arguments.png)
        print(arguments.png)
    if arguments.html is not None:
        from ..tracing.svg import html

        arguments.html.write_text(html(picture), encoding="utf-8")
        print(arguments.html)


def _picture(arguments: argparse.Namespace, trace: Trace) -> Picture:
    from ..tracing.picture import draw_window, step_window, typical_window

    if arguments.window is not None:
        begin, end = _range(arguments.window)
        return draw_window(trace, begin * 1e3, end * 1e3)
    if arguments.steps is not None:
        first, last = _range(arguments.steps)
        return draw_window(trace, *step_window(trace, int(first), int(last)))
    return draw_window(trace, *typical_window(trace))


def _pair(text: str) -> tuple[str, str]:
    span, equals, sign = text.rpartition("=")
    if not equals:
        raise UsageError(f"{text!r} is not SPAN=SIGN")
    return span, sign


def _range(text: str) -> tuple[float, float]:
    begin, colon, end = text.partition(":")
    try:
        return float(begin), float(end if colon else begin)
    except ValueError:
        raise UsageError(f"{text!r} is not a range like 10:20") from None


def _merge(arguments: argparse.Namespace) -> None:
    from ..tracing.torch_events import merge

    if arguments.out is None:
        raise UsageError("--torch needs --out FILE")
    merge(arguments.file, arguments.torch, arguments.out)
    print(arguments.out)
