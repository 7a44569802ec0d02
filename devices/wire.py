"""The bell between a process and its device child: fixed frames over a socket pair, payloads in two rings."""

from __future__ import annotations

import struct
from enum import IntEnum

import msgspec

from .ring import Place


class Kind(IntEnum):
    """What a frame announces."""

    CALL = 0  # run a method and answer
    CAST = 1  # run a method, answer only if it fails
    DONE = 2  # the arrays a method returned
    FAILED = 3  # the text is a `Failure`


class Frame(msgspec.Struct, frozen=True):
    """One ring of the bell. `sequence` counts requests from 0; answers repeat it."""

    sequence: int
    kind: Kind
    place: Place


class Failure(msgspec.Struct, frozen=True):
    """An exception of the child, as text: its class may not exist on the other side."""

    message: str
    trace: str
    no_room: bool


_LAYOUT = struct.Struct("<qqqq")
FRAME_BYTES = _LAYOUT.size


def encode_frame(frame: Frame) -> bytes:
    return _LAYOUT.pack(frame.sequence, frame.kind, frame.place.begin, frame.place.end)


def decode_frames(received: bytearray) -> list[Frame]:
    """Takes every whole frame off the front of what was received."""
    whole = len(received) // FRAME_BYTES * FRAME_BYTES
    frames = [
        Frame(sequence, Kind(kind), Place(begin, end))
        for sequence, kind, begin, end in _LAYOUT.iter_unpack(bytes(received[:whole]))
    ]
    del received[:whole]
    return frames


class RingSizes(msgspec.Struct, frozen=True):
    """Bytes of the two rings, requests first in the shared memory. Multiples of 64."""

    requests: int = 64 << 20
    answers: int = 16 << 20

    @property
    def total(self) -> int:
        return self.requests + self.answers
