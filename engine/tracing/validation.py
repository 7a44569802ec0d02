"""What must hold of every trace: intervals balance and nest, tracks never overlap, arrows resolve.

A viewer repairs or hides broken events, so a broken trace looks plausible and misleads. This check reads a
file as a viewer does and names what is wrong. A file that was cut may end with intervals and arrows open;
nothing else is forgiven.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from operator import attrgetter

from .encoder import END
from .reader import Event

TOLERANCE = 0.0011
"""Microseconds: times and durations are rounded to a nanosecond each."""

MOST_UNFINISHED = 5
"""Steps whose tokens are no deltas yet when a trace ends: two in flight, and three of which streams hear with
the next one while the device waits for the host."""

Track = tuple[object, object]


def problems(events: Iterable[Event]) -> list[str]:
    """Every violation in a file's events, as sentences; an empty list is a valid trace."""
    tracks: dict[Track, list[Event]] = defaultdict(list)
    asynchronous: dict[object, list[Event]] = defaultdict(list)
    flows: dict[object, list[Event]] = defaultdict(list)
    complete, found = False, []
    for event in events:
        if event.ts < 0 or event.dur < 0:
            found.append(
                f"{event.name!r} at {event.ts} us lasts {event.dur} us: before the origin, or negative"
            )
        if event.ph == "X":
            tracks[event.pid, event.tid].append(event)
            if event.bind_id != "":
                flows[event.bind_id].append(event)
        elif event.ph in "ben":
            asynchronous[event.cat, event.id].append(event)
        complete |= event.ph == "M" and event.name == END
    for track, spans in tracks.items():
        found += _overlaps(track, spans)
    for identity, intervals in asynchronous.items():
        found += _unbalanced(identity, intervals, complete)
    unfinished = sum(_leaves_open(arrow) for arrow in flows.values())
    for flow, arrow in flows.items():
        found += _broken_arrow(flow, arrow)
    if complete and unfinished > MOST_UNFINISHED:
        found.append(
            f"{unfinished} arrows end nowhere; at most {MOST_UNFINISHED} steps are under way at the end"
        )
    return found


def _overlaps(track: Track, spans: list[Event]) -> list[str]:
    found = []
    open_until: list[tuple[float, str]] = []
    for span in sorted(spans, key=lambda event: (event.ts, -event.dur)):
        end = span.ts + span.dur
        while open_until and open_until[-1][0] <= span.ts + TOLERANCE:
            open_until.pop()
        if open_until and end > open_until[-1][0] + TOLERANCE:
            found.append(
                f"on track {track}, {span.name!r} from {span.ts} to {end} us overlaps {open_until[-1][1]!r}, "
                f"which ends at {open_until[-1][0]}"
            )
        open_until.append((end, span.name))
    return found


def _unbalanced(identity: object, intervals: list[Event], complete: bool) -> list[str]:
    """Begins and ends of one id, in order of time and then of the file, as a viewer sorts them."""
    found: list[str] = []
    open_names: list[str] = []
    for event in sorted(intervals, key=attrgetter("ts")):
        if event.ph == "b":
            open_names.append(event.name)
        elif event.ph == "n":
            if not open_names:
                found.append(f"{identity}: {event.name!r} at {event.ts} us is outside of every interval")
        elif not open_names or open_names[-1] != event.name:
            found.append(f"{identity}: {event.name!r} ends at {event.ts} us while {open_names} are open")
        else:
            open_names.pop()
    if complete and open_names:
        found.append(f"{identity}: {open_names} never end")
    return found


def _leaves_open(arrow: list[Event]) -> bool:
    return all(event.flow_out for event in arrow)


def _broken_arrow(flow: object, arrow: list[Event]) -> list[str]:
    first, *others = sorted(arrow, key=attrgetter("ts"))
    found = []
    if first.flow_in and not any(e.ts == first.ts and not e.flow_in for e in others):
        found.append(f"arrow {flow} comes from nowhere into {first.name!r}")
    starts = [event for event in arrow if not event.flow_in]
    if len(starts) > 1:
        found.append(f"arrow {flow} starts {len(starts)} times")
    ends = [event for event in arrow if not event.flow_out]
    if len(ends) > 1:
        found.append(f"arrow {flow} ends {len(ends)} times")
    return found
