"""Records to lines of Chrome's JSON trace format, which ui.perfetto.dev opens.

Lines are made from one template per span name, in batches, on the pump's thread: what costs there is the
interpreter's lock, which the loop wants back. A step's arrow needs no events of its own: spans carry the
step's number as `bind_id`. Only steps whose plan is in the file get an arrow, so that every arrow resolves.

A line is one event and ends in a comma: the file is an array of events whose closing bracket may be missing,
so it can be read up to wherever a crash cut it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from .recorder import Record
from .request_tracks import RequestTracks
from .vocabulary import (
    ADMITTED,
    COUNTED,
    COUNTERS,
    DELIVERED,
    DEVICE,
    DEVICE_FLOW,
    DEVICE_WORK,
    ENDED,
    FLOW,
    HOST,
    HOST_TRACKS,
    NOTE,
    OPENED,
    PROCESSES,
    SPAN_NAMES,
    STEPPED,
    Flow,
    SpanName,
    stage_and_step,
    thread_id,
    track_of,
)

FORMAT_VERSION = 1
START, END = "stepahead trace", "stepahead trace end"
"""Names of the metadata events that open and close a file; without the second, it was cut."""

_META = b'{"ph":"M","pid":%d,"tid":%d,"name":"%s","args":%s},\n'
_SPAN = b'{"ph":"X","pid":%d,"tid":%d,"name":"%s","ts":%%.3f,"dur":%%.3f%s,"args":{"step":%%d}},\n'
_BARE = b'{"ph":"X","pid":%d,"tid":%d,"name":"%s","ts":%%.3f,"dur":%%.3f},\n'
_WORK = b'{"ph":"X","pid":%d,"tid":%d,"name":%s,"ts":%.3f,"dur":%.3f%s,"args":{"step":%d}},\n'
_COUNTS = b'{"ph":"C","pid":%d,"tid":0,"name":"%s","ts":%%.3f,"args":{%s}},\n'
_INSTANT = b'{"ph":"i","s":"g","pid":%d,"tid":0,"name":%s,"ts":%.3f},\n'


def metadata(process: int, thread: int, name: str, arguments: dict[str, object]) -> bytes:
    """A line that describes the file, a process or a thread."""
    return _META % (process, thread, name.encode(), msgspec.json.encode(arguments))


def _flow_fields(flow: Flow) -> bytes:
    into = b',"flow_in":true' if flow.enters else b""
    out = b',"flow_out":true' if flow.leaves else b""
    return b',"bind_id":"0x%x"' + into + out


def _span_template(name: SpanName, flow: bytes, template: bytes) -> bytes:
    place = HOST, thread_id(track_of(name)), name.partition(".")[2].replace("_", " ").encode()
    return template % ((*place, flow) if template is _SPAN else place)


_PLAIN = {name: _span_template(name, b"", _SPAN) for name in SPAN_NAMES}
_STEPLESS = {name: _span_template(name, b"", _BARE) for name in SPAN_NAMES}
_FLOWING = {name: _span_template(name, _flow_fields(flow), _SPAN) for name, flow in FLOW.items()}
_THROUGH = _flow_fields(Flow(True, True))
_GROUPS = tuple(
    _COUNTS % (HOST, group.encode(), b",".join(b'"%s":%%d' % name.encode() for name in names))
    for group, names in COUNTERS.items()
)


class Encoder:
    """The state of one file: its origin, the steps whose arrow is under way, the requests that are open."""

    def __init__(
        self,
        origin: int,
        *,
        detail: int = 16,
        detail_bytes: int = 1 << 27,
        only: frozenset[int] | None = None,
    ) -> None:
        """`origin`: the time, ns of the recorder's clock, that the file calls 0. Others: `RequestTracks`."""
        self.origin = origin
        self._flowing: set[int] = set()
        self._streams: dict[str, int] = {}
        self._counts: list[tuple[int, ...] | None] = [None] * len(COUNTERS)
        self._requests = RequestTracks(self._ts, detail=detail, detail_bytes=detail_bytes, only=only)
        self._others = {
            DEVICE_WORK: self._device_work,
            COUNTED: self._counted,
            NOTE: self._note,
            OPENED: self._requests.opened,
            ADMITTED: self._requests.admitted,
            STEPPED: self._requests.stepped,
            DELIVERED: self._requests.delivered,
            ENDED: self._requests.ended,
        }

    def head(self, facts: dict[str, object]) -> bytes:
        """The lines before all others: what the file is, and how its tracks are called and ordered."""
        lines = [b"[\n", metadata(HOST, 0, START, {"version": FORMAT_VERSION, **facts})]
        for process, name in PROCESSES.items():
            lines.append(metadata(process, 0, "process_name", {"name": name}))
            lines.append(metadata(process, 0, "process_sort_index", {"sort_index": process}))
        for track in HOST_TRACKS:
            lines.append(metadata(HOST, thread_id(track), "thread_name", {"name": track.replace("_", " ")}))
        return b"".join(lines)

    def encode(self, records: Iterable[Record]) -> bytes:
        """Lines of records made at or after the origin; earlier ones are left out."""
        lines = []
        origin, flowing, others = self.origin, self._flowing, self._others
        for record in records:
            name, begin = record[0], record[1]
            if begin < origin:
                continue
            other = others.get(name)
            if other is not None:
                lines.append(other(record))
                continue
            _, _, end, step, size = record
            at, duration = (begin - origin) / 1000, (end - begin) / 1000
            if step < 0:
                lines.append(_STEPLESS[name] % (at, duration))
                continue
            if name == "scheduler.plan":
                flowing.add(step)
            if step in flowing and name in _FLOWING:
                line = _FLOWING[name] % (at, duration, step + 1, step)
                if name == "output.detokenize":
                    flowing.discard(step)
            else:
                line = _PLAIN[name] % (at, duration, step)
            lines.append(line[:-4] + b',"size":%d}},\n' % size if size else line)
        return b"".join(lines)

    def tail(self, time: int, facts: dict[str, object]) -> bytes:
        """Closes open requests, then the file."""
        closed = self._requests.finish(max(time, self.origin))
        return closed + metadata(HOST, 0, END, facts).removesuffix(b",\n") + b"\n]\n"

    def _ts(self, time: int) -> float:
        return (time - self.origin) / 1000

    def _device_work(self, record: Record) -> bytes:
        _, begin, end, stream, label = record
        thread = self._streams.get(stream)
        named = b""
        if thread is None:
            thread = self._streams[stream] = len(self._streams) + 1
            named = metadata(DEVICE, thread, "thread_name", {"name": stream})
        stage, step = stage_and_step(label)
        flow = _THROUGH % (step + 1) if stage in DEVICE_FLOW and step in self._flowing else b""
        place = DEVICE, thread, msgspec.json.encode(stage)
        return named + _WORK % (*place, self._ts(begin), (end - begin) / 1000, flow, step)

    def _counted(self, record: Record) -> bytes:
        """Groups that changed."""
        lines = []
        time = self._ts(record[1])
        for number, values in enumerate(record[2]):
            if values != self._counts[number]:
                self._counts[number] = values
                lines.append(_GROUPS[number] % (time, *values))
        return b"".join(lines)

    def _note(self, record: Record) -> bytes:
        return _INSTANT % (HOST, msgspec.json.encode(record[2]), self._ts(record[1]))
