"""Messages of arrays in memory that two processes share: written by one, read in order by the other.

A step's plan is a few kilobytes of arrays. Pickled through a pipe it would be copied four times and could
block the writer; here it is copied once into the ring, and only the place of the message travels, through
whatever bell the two sides agree on. Rejected: `multiprocessing.shared_memory`, whose tracker is one more
process, and which warns about segments that the other side closes.

Invariant: the writer owns [written, freed + size), the reader [freed, written); `freed` is the only word
both touch, and only the reader writes it. What a bell announces was written before it rang.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_HEADER = 64  # bytes before the ring: the word `freed`
_ALIGNMENT = 64


class RingFullError(RuntimeError):
    """The reader has not freed enough room for a message, or the message is larger than the ring."""

    def __init__(self, needed: int, size: int) -> None:
        super().__init__(f"a message of {needed} bytes finds no room in a ring of {size} bytes")
        self.needed, self.size = needed, size


class Place(msgspec.Struct, frozen=True):
    """Where a message lies, as counters that never wrap; `begin % size` is the offset."""

    begin: int
    end: int


class _Form(msgspec.Struct, frozen=True, array_like=True):
    text: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]  # dtype and shape


def anonymous_memory(size: int) -> int:
    """A descriptor of zeroed memory that vanishes with its last user; pages cost nothing until touched."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("stepahead-ring")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


class Ring:
    """One direction of a connection: either end may be made on the same mapping."""

    def __init__(self, mapping: mmap.mmap, start: int, size: int) -> None:
        """`size` counts the header; it and `start` are multiples of 64."""
        self._freed = np.frombuffer(mapping, dtype=np.int64, count=1, offset=start)
        self._memory = memoryview(mapping)[start + _HEADER : start + size]
        self._size = len(self._memory)
        self._written = 0

    def write(self, text: str, arrays: Sequence[Array]) -> Place:
        """Copies a message in. Raises `RingFullError`, and nothing is written."""
        form = _Form(text, tuple((array.dtype.str, array.shape) for array in arrays))
        head = msgspec.msgpack.encode(form)
        parts = [len(head).to_bytes(8, "little"), head, *[array.tobytes() for array in arrays]]
        message = b"".join([_padded(part) for part in parts])  # small arrays, and one copy into the ring
        begin = self._reserve(len(message))
        offset = begin % self._size
        self._memory[offset : offset + len(message)] = message
        self._written = begin + len(message)
        return Place(begin, self._written)

    def _reserve(self, needed: int) -> int:
        """Where a message of this size may begin: in one piece, so at the start again if the end is near."""
        room_to_end = self._size - self._written % self._size
        begin = self._written if needed <= room_to_end else self._written + room_to_end
        if begin + needed - int(self._freed[0]) > self._size:
            raise RingFullError(needed, self._size)
        return begin

    def read(self, place: Place) -> tuple[str, list[Array]]:
        """Copies a message out and frees its room; messages must be read in the order written."""
        offset = place.begin % self._size
        message = bytearray(self._memory[offset : offset + place.end - place.begin])
        self._freed[0] = place.end
        length = int.from_bytes(message[:8], "little")
        form = msgspec.msgpack.decode(memoryview(message)[_ALIGNMENT : _ALIGNMENT + length], type=_Form)
        at, arrays = _ALIGNMENT + _aligned(length), list[Array]()
        for code, shape in form.arrays:
            dtype, count = np.dtype(code), math.prod(shape)
            arrays.append(np.frombuffer(message, dtype, count, at).reshape(shape))
            at += _aligned(count * dtype.itemsize)
        return form.text, arrays


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % _ALIGNMENT)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
