"""Everything a trace can say: tracks, spans, counters, and which span a step's arrow passes through.

The actors name a span by a string literal that the type checker knows, so recording costs no lookup and a
typing error does not survive `mypy`. What a name means (its track, its place in the flow) is needed only by
who writes and reads files, and stands here. Rejected: span objects held by the actors, which the garbage
collector would track once per recorded tuple.

Invariant: the spans of one track never overlap except by nesting; each step's arrow visits `FLOW` in order of
time, starts at its plan and ends where its tokens become deltas.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

HOST, DEVICE, REQUESTS, TORCH = 1, 2, 3, 1000
"""Process ids in the file. They number groups of tracks; TORCH is added to those of a merged profile."""

PROCESSES = {HOST: "host: one event loop", DEVICE: "device", REQUESTS: "requests"}
ACTORS = ("scheduler", "cache_manager", "sampler", "device_worker", "output")
HOST_TRACKS = (*ACTORS, "event_loop")
"""Tracks of the host in drawing order; a track's thread id is its place here, from 1."""

SpanName = Literal[
    "scheduler.submit",
    "scheduler.cancel",
    "scheduler.commit",
    "scheduler.plan",
    "scheduler.await_cache",
    "cache_manager.reserve",
    "cache_manager.publish",
    "cache_manager.reset",
    "sampler.commit",
    "sampler.prepare",
    "sampler.mask",
    "device_worker.launch_forward",
    "device_worker.launch_sample",
    "device_worker.collect",
    "output.open",
    "output.admit",
    "output.detokenize",
    "output.close",
    "event_loop.lag",
]
SPAN_NAMES: tuple[SpanName, ...] = get_args(SpanName)

WAITING: frozenset[SpanName] = frozenset({"scheduler.await_cache", "event_loop.lag"})
"""Spans in which the actor waits and the loop runs others: no host work."""


class Flow(NamedTuple):
    """How a step's arrow meets a span: comes in, goes on."""

    enters: bool
    leaves: bool


FLOW: dict[SpanName, Flow] = {
    "scheduler.plan": Flow(False, True),
    "device_worker.launch_forward": Flow(True, True),
    "device_worker.launch_sample": Flow(True, True),
    "device_worker.collect": Flow(True, True),
    "sampler.commit": Flow(True, True),
    "output.detokenize": Flow(True, False),
}
DEVICE_FLOW = frozenset({"forward", "sample"})
"""Pieces of device work that the arrow passes through; a piece's label is `stage:step`."""

FORWARD_STAGES = frozenset({"copies", "fixups", "forward"})
"""Pieces enqueued by `launch_forward`; all others are `launch_sample`'s."""

COUNTERS: dict[str, tuple[str, ...]] = {
    "sequences": ("running", "waiting"),
    "steps": ("uncommitted",),
    "rows": ("verified", "prompt"),
    "blocks": ("free",),
    "mailbox": ACTORS,
}
"""Counter tracks by group. A record of counts holds one tuple per group, in this order."""

DEVICE_WORK = "device.work"
COUNTED = "counters"
OPENED = "request.opened"
ADMITTED = "request.admitted"
STEPPED = "request.stepped"
DELIVERED = "request.delivered"
ENDED = "request.ended"
NOTE = "note"
"""First items of the records that are no spans; their shapes are in `recorder.py`."""


def track_of(name: str) -> str:
    """The host track a span belongs to."""
    return name.partition(".")[0]


def thread_id(track: str) -> int:
    return HOST_TRACKS.index(track) + 1


def stage_and_step(label: str) -> tuple[str, int]:
    """`forward:12` -> ("forward", 12); work that belongs to no step has step -1."""
    stage, _, step = label.partition(":")
    return stage, int(step) if step.isdecimal() else -1
