"""Events of `torch.profiler` on the clock of our traces.

Its export counts microseconds from `baseTimeNanoseconds` of wall time; ours count from an origin whose wall
time is known. So merging is a shift, and a renaming of processes that keeps its groups apart from ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from stepahead.engine.errors import StepaheadError

from .reader import lines, read_trace
from .vocabulary import TORCH

_MICROSECONDS = 1000


class NotMergeableError(StepaheadError):
    """Two files that cannot be brought onto one clock."""

    def __init__(self, file: Path, why: str) -> None:
        super().__init__(f"{file} cannot be merged: {why}")


def torch_events(exported: Path, wall_at_origin: int) -> Iterator[bytes]:
    """Lines for a trace file whose time 0 is `wall_at_origin` (unix, ns).

    Raises `NotMergeableError`, or OSError.
    """
    try:
        profile = msgspec.json.decode(exported.read_bytes())
    except msgspec.DecodeError as error:
        raise NotMergeableError(exported, str(error)) from None
    if "baseTimeNanoseconds" not in profile:
        raise NotMergeableError(exported, "no baseTimeNanoseconds, so it is no export of torch.profiler")
    shift = (int(profile["baseTimeNanoseconds"]) - wall_at_origin) / _MICROSECONDS
    for event in profile["traceEvents"]:
        yield msgspec.json.encode(_moved(event, shift)) + b",\n"


def merge(trace: Path, exported: Path, out: Path) -> None:
    """Writes the events of both to `out`. Raises `NotATraceError`, `NotMergeableError`, or OSError."""
    facts = read_trace(trace).facts
    if facts.get("wall_ns_at_zero") is None:
        raise NotMergeableError(trace, "its clock has no wall time (it ran in virtual time)")
    *body, end = [line.rstrip(b",\r\n ") for line in lines(trace) if line.startswith(b"{")]
    moved = [line.rstrip(b",\n") for line in torch_events(exported, int(facts["wall_ns_at_zero"]))]
    out.write_bytes(b"[\n" + b",\n".join([*body, *moved, end]) + b"\n]\n")


def _moved(event: dict[str, Any], shift: float) -> dict[str, Any]:
    moved = dict(event)
    if event.get("ph") != "M":
        moved["ts"] = round(float(event["ts"]) + shift, 3)
    process = event.get("pid")
    if isinstance(process, int):
        moved["pid"] = TORCH + process
    if event.get("name") == "process_name":
        moved["args"] = {"name": f"torch: {event['args']['name']}"}
    return moved
