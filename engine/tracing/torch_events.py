"""Events of `torch.profiler` on the clock of our traces.

Its export counts microseconds from `baseTimeNanoseconds` of wall time; ours count from an origin whose wall
time is known. So merging is a shift, and a renaming of processes that keeps its groups apart from ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from .vocabulary import TORCH

_MICROSECONDS = 1000


def torch_events(exported: Path, wall_at_origin: int) -> Iterator[bytes]:
    """Lines for a trace file whose time 0 is `wall_at_origin` (unix, ns).

    Raises `msgspec.DecodeError` for a file that is no JSON, KeyError for one that is no torch profile.
    """
    profile = msgspec.json.decode(exported.read_bytes())
    shift = (int(profile["baseTimeNanoseconds"]) - wall_at_origin) / _MICROSECONDS
    for event in profile["traceEvents"]:
        yield msgspec.json.encode(_moved(event, shift)) + b",\n"


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
