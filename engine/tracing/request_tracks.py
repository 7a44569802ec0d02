"""One track per request: queued, prompt chunks, decode steps, deltas taken, and why it ended.

A step serves hundreds of sequences, and an event for each of them would cost more than the step. So the first
few live requests, and those whose caller asked, are followed step by step; all others by phase. The intervals
of a request run from commit to commit, which is what its caller experiences and which never overlap, although
the steps on the device's side do.

Invariant: per request, begins and ends balance and nest: one outer interval, inner ones end to end.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import numpy.typing as npt

from stepahead.engine.model.runner import BatchLayout

from .recorder import Record
from .vocabulary import REQUESTS

_BEGIN = b'{"ph":"b","pid":%d,"cat":"request","id":"0x%x","name":%s,"ts":%.3f,"args":%s},\n'
_END = b'{"ph":"e","pid":%d,"cat":"request","id":"0x%x","name":%s,"ts":%.3f},\n'
_INSTANT = b'{"ph":"n","pid":%d,"cat":"request","id":"0x%x","name":%s,"ts":%.3f,"args":%s},\n'


class _Life(msgspec.Struct):
    """A request between its first and its last event in the file."""

    key: int
    title: bytes  # JSON
    since: int  # the end of the last inner interval, ns
    phase: bytes = b"queued"
    detailed: bool = False


class RequestTracks:
    """Turns the records of sequences into events. `ts` maps a time to the file's microseconds."""

    def __init__(
        self, ts: Callable[[int], float], *, detail: int, detail_bytes: int, only: frozenset[int] | None
    ) -> None:
        """Follows `detail` requests at a time step by step, as long as that took less than `detail_bytes`.

        `only`: these keys are followed to the end, and others not shown.
        """
        self._ts, self._room, self._only = ts, detail, only
        self._budget = detail_bytes
        self._lives: dict[int, _Life] = {}
        self._ended: set[int] = set()
        self._rows: dict[int, int] = {}  # detailed keys of `_layout` -> row
        self._layout: BatchLayout | None = None

    def opened(self, record: Record) -> bytes:
        _, time, key, label, prompt_tokens, followed = record
        return self._begin(key, time, label, b'{"prompt tokens":%d}' % prompt_tokens, followed)

    def admitted(self, record: Record) -> bytes:
        _, time, key, cached, resumed = record
        adopted = self._adopted(key, time)
        life = self._lives.get(key)
        if life is None:
            return b""
        name = b"queued again" if resumed else b"queued"
        event = self._inner(life, name, time, b'{"cached tokens":%d}' % cached)
        life.phase = b"prefill"
        return adopted + event

    def stepped(self, record: Record) -> bytes:
        _, time, step, layout, counts = record
        lines = []
        if layout is not self._layout:
            lines = [self._adopted(key, time) for key in layout.sequence_keys.tolist()]
            self._find_rows(layout)
        for key, row in self._rows.items():
            lines.append(self._step(self._lives[key], row, time, step, layout, counts))
        if self._only is None:
            self._budget -= sum(map(len, lines))
            if self._budget < 0 and self._rows:
                self._stop_following()
        for row in range(layout.decode_count, layout.slots.size):
            life = self._lives.get(int(layout.sequence_keys[row]))
            if life is not None and layout.samples[row]:
                lines.append(self._first_token(life, time))
        return b"".join(lines)

    def delivered(self, record: Record) -> bytes:
        _, time, key, tokens = record
        life = self._lives.get(key)
        if life is None or not life.detailed:
            return b""
        return _INSTANT % (REQUESTS, key, b'"streamed"', self._ts(time), b'{"tokens":%d}' % tokens)

    def ended(self, record: Record) -> bytes:
        _, time, key, reason, tokens = record
        life = self._lives.get(key)
        return b"" if life is None else self._end(life, time, reason, tokens)

    def finish(self, time: int) -> bytes:
        """Ends what is still open, so that the file balances."""
        return b"".join(self._end(life, time, "still running", -1) for life in list(self._lives.values()))

    def _begin(
        self, key: int, time: int, label: str | None, arguments: bytes, followed: bool = False
    ) -> bytes:
        if self._only is not None and key not in self._only:
            return b""
        title = msgspec.json.encode(f"request {key}" if label is None else f"request {key}: {label}")
        life = _Life(
            key,
            title,
            time,
            detailed=(followed and self._budget > 0) or self._room > 0 or self._only is not None,
        )
        self._room -= life.detailed
        self._lives[key] = life
        self._layout = None
        return _BEGIN % (REQUESTS, key, title, self._ts(time), arguments)

    def _adopted(self, key: int, time: int) -> bytes:
        """A request that began before the file did."""
        if key in self._lives or key in self._ended:
            return b""
        event = self._begin(key, time, None, b'{"began":"before this trace"}')
        if event:
            self._lives[key].phase = b"decode"
        return event

    def _stop_following(self) -> None:
        """The rest of every life is told by phase."""
        self._room = -(1 << 30)
        self._rows = {}
        for life in self._lives.values():
            life.detailed = False

    def _find_rows(self, layout: BatchLayout) -> None:
        keys = enumerate(layout.sequence_keys.tolist())
        lives = self._lives
        self._rows = {key: row for row, key in keys if key in lives and lives[key].detailed}
        self._layout = layout

    def _step(
        self,
        life: _Life,
        row: int,
        time: int,
        step: int,
        layout: BatchLayout,
        counts: npt.NDArray[np.int32],
    ) -> bytes:
        tokens, rows = int(counts[row]), int(layout.query_lengths[row])
        name = b"decode" if row < layout.decode_count else b"prefill"
        return self._inner(life, name, time, b'{"step":%d,"rows":%d,"tokens":%d}' % (step, rows, tokens))

    def _first_token(self, life: _Life, time: int) -> bytes:
        event = b"" if life.detailed else self._inner(life, life.phase, time, b"{}")
        life.phase = b"decode"
        return event

    def _inner(self, life: _Life, name: bytes, time: int, arguments: bytes) -> bytes:
        """An interval from the end of the last one to `time`."""
        quoted = b'"%s"' % name
        begin, life.since = life.since, time
        return _BEGIN % (REQUESTS, life.key, quoted, self._ts(begin), arguments) + _END % (
            REQUESTS,
            life.key,
            quoted,
            self._ts(time),
        )

    def _end(self, life: _Life, time: int, reason: str, tokens: int) -> bytes:
        inner = self._inner(life, life.phase, time, b"{}") if life.since < time else b""
        self._room += life.detailed
        del self._lives[life.key]
        self._ended.add(life.key)
        self._layout = None
        arguments = msgspec.json.encode({"tokens": tokens})
        why = msgspec.json.encode(f"ended: {reason}")
        instant = _INSTANT % (REQUESTS, life.key, why, self._ts(time), arguments)
        return inner + instant + _END % (REQUESTS, life.key, life.title, self._ts(time))
