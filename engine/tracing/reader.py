"""A trace file back in memory, however it ended.

A file may be huge, cut in the middle of a line, or compressed and cut; all that can be read is read, and
`complete` says whether the end was seen. Lines are decoded one by one straight into structs, which keeps
memory near the size of what is kept.
"""

from __future__ import annotations

import gzip
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepahead.engine.errors import StepaheadError

from .encoder import END, START
from .vocabulary import DEVICE, HOST, REQUESTS


class NotATraceError(StepaheadError):
    """A file that is no trace of ours."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path} is not a Stepahead trace: {why}")
        self.path, self.why = path, why


class Event(msgspec.Struct, gc=False):
    """One line of a file; times in microseconds."""

    ph: str
    pid: int | str = 0
    tid: int | str = 0
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0
    cat: str = ""
    id: str | int = ""
    bind_id: str | int = ""
    flow_in: bool = False
    flow_out: bool = False
    args: dict[str, Any] = {}


class Span(msgspec.Struct, frozen=True, gc=False, order=True):
    """An interval on a track, microseconds from the file's origin."""

    begin: float
    end: float
    name: str
    step: int = -1
    size: int = 0


class Trace(msgspec.Struct):
    """What a file holds. Tracks of the host are named as in `vocabulary.HOST_TRACKS`."""

    host: dict[str, list[Span]]
    device: dict[str, list[Span]]  # by stream
    counters: dict[str, list[tuple[float, float]]]  # "group name" -> (time, value)
    notes: list[tuple[float, str]]
    requests: int
    facts: dict[str, Any]
    end: dict[str, Any] | None

    @property
    def complete(self) -> bool:
        return self.end is not None


def events(path: Path) -> Iterator[Event]:
    """The events of a file in its order, up to where it was cut."""
    decoder = msgspec.json.Decoder(Event)
    for line in lines(path):
        stripped = line.rstrip(b",\r\n\t ")
        if not stripped.startswith(b"{"):
            continue
        try:
            yield decoder.decode(stripped)
        except msgspec.DecodeError:
            return  # the line that a crash cut


def read_trace(path: Path) -> Trace:
    """Raises `NotATraceError`, or OSError."""
    trace = Trace({}, {}, defaultdict(list), [], 0, {}, None)
    threads: dict[tuple[int | str, int | str], str] = {}
    started = False
    for event in events(path):
        if event.ph == "M":
            started = started or event.name == START
            _describe(trace, threads, event)
        elif not started:
            break
        elif event.ph == "X":
            _add_span(trace, threads, event)
        elif event.ph == "C":
            for name, value in event.args.items():
                trace.counters[f"{event.name} {name}"].append((event.ts, value))
        elif event.ph == "i":
            trace.notes.append((event.ts, event.name))
        elif event.ph == "b" and event.cat == "request" and event.name.startswith("request "):
            trace.requests += event.pid == REQUESTS
    if not started:
        raise NotATraceError(path, f"its first event is not {START!r}")
    _sort(trace)
    return trace


def lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, compressed or not, up to where it was cut."""
    compressed = path.suffix == ".gz"
    with gzip.open(path, "rb") if compressed else path.open("rb") as file:
        try:
            yield from file
        except (EOFError, zlib.error) as cut:
            if not compressed:
                raise cut
            return


def _describe(trace: Trace, threads: dict[tuple[int | str, int | str], str], event: Event) -> None:
    if event.name == START:
        trace.facts = event.args
    elif event.name == END:
        trace.end = event.args
    elif event.name == "thread_name":
        threads[event.pid, event.tid] = str(event.args["name"])


def _add_span(trace: Trace, threads: dict[tuple[int | str, int | str], str], event: Event) -> None:
    if event.pid not in (HOST, DEVICE):
        return
    track = threads.get((event.pid, event.tid), str(event.tid))
    span = Span(
        event.ts,
        event.ts + event.dur,
        event.name,
        event.args.get("step", -1),
        event.args.get("size", 0),
    )
    if event.pid == DEVICE:
        trace.device.setdefault(track, []).append(span)
    else:
        trace.host.setdefault(track.replace(" ", "_"), []).append(span)


def _sort(trace: Trace) -> None:
    """By time; of spans that begin together, the enclosing one first."""
    for tracks in (trace.host, trace.device):
        for spans in tracks.values():
            spans.sort(key=lambda span: (span.begin, -span.end))
