"""When pieces of work ran on the card, on the host's clock, without ever asking the card to wait.

Events are stamped by the card's own clock, and torch gives only differences of two, in float32 milliseconds.
So each piece is placed relative to the end of the piece before it: differences stay short and thereby exact.
What ties the chain to the host's clock is causality, tested at every piece: none begins before it was
launched, none ends after its completion was seen. Whenever the chain, which drifts with the two clocks, would
say otherwise, it is moved by as much. Rejected: an anchor made by synchronising now and then, a stall that
would show in the very trace it serves.

Invariant: told times of a stream never decrease. They are off by at most what the host needs to notice the
end of a step (some 20 us); differences between pieces are the card's.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from .device import WorkObserver

if TYPE_CHECKING:
    import torch

_UNTOLD = 4096
"""Pieces kept of a stream that nobody watches."""


class Piece(NamedTuple):
    """Work between two events, launched at `launched` ns; the stream's mark `serial` is the next one."""

    label: str
    serial: int
    launched: int
    begin: torch.cuda.Event
    end: torch.cuda.Event


class StreamClock:
    """Times the pieces of one stream. `mark` and `ended` on the launching thread, `tell` on any."""

    def __init__(self, stream_name: str, observer: WorkObserver, stream: torch.cuda.Stream) -> None:
        import torch

        self._name, self._observer, self._stream = stream_name, observer, stream
        self._library = torch.cuda
        self._pieces: deque[Piece] = deque(maxlen=_UNTOLD)
        self._spare: deque[torch.cuda.Event] = deque()
        self._anchor = self.mark()
        self._anchor_ns = float(time.perf_counter_ns())
        self._last = 0
        self._telling = threading.Lock()

    def mark(self) -> torch.cuda.Event:
        """A timed event at the present end of the stream."""
        event = self._spare.pop() if self._spare else self._library.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def ended(self, label: str, serial: int, launched: int, begin: torch.cuda.Event) -> None:
        """A piece was launched whole, since the mark `begin`."""
        self._pieces.append(Piece(label, serial, launched, begin, self.mark()))

    def tell(self, serial: int) -> None:
        """The mark of that number was reached, hence all pieces before it."""
        with self._telling:
            seen = time.perf_counter_ns()
            while self._pieces and self._pieces[0].serial <= serial:
                piece = self._pieces.popleft()
                begin, end = self._placed(piece, seen)
                self._observer(self._name, piece.label, begin, end)
                self._spare.append(piece.begin)

    def _placed(self, piece: Piece, seen: int) -> tuple[int, int]:
        begin = self._anchor_ns + self._anchor.elapsed_time(piece.begin) * 1e6
        end = begin + piece.begin.elapsed_time(piece.end) * 1e6
        late, early = piece.launched - begin, end - seen
        move = late if late > 0 else -early if early > 0 else 0.0
        self._spare.append(self._anchor)
        self._anchor, self._anchor_ns = piece.end, end + move
        told_begin = max(round(begin + move), self._last)
        self._last = max(min(round(end + move), seen), told_begin)
        return told_begin, self._last
