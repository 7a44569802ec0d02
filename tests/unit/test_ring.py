"""Messages of arrays in shared memory: in order, in one piece, never over what is still unread."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest

from stepahead.devices.ring import Place, Ring, RingFullError, anonymous_memory
from stepahead.devices.wire import FRAME_BYTES, Frame, Kind, decode_frames, encode_frame

SIZE = 64 + 4096


@pytest.fixture
def ends() -> tuple[Ring, Ring]:
    """The writer's and the reader's end of one ring."""
    descriptor = anonymous_memory(SIZE)
    one, other = mmap.mmap(descriptor, SIZE), mmap.mmap(descriptor, SIZE)
    os.close(descriptor)
    return Ring(one, 0, SIZE), Ring(other, 0, SIZE)


def test_messages_come_out_as_they_went_in(ends: tuple[Ring, Ring]) -> None:
    writer, reader = ends
    sent = [np.arange(7, dtype=np.int32), np.ones((2, 0, 3)), np.array([2**63], dtype=np.uint64)]
    text, arrays = reader.read(writer.write("hello", sent))
    assert text == "hello"
    assert [array.dtype for array in arrays] == [array.dtype for array in sent]
    assert [array.tolist() for array in arrays] == [array.tolist() for array in sent]


def test_it_goes_round_with_messages_of_any_size(ends: tuple[Ring, Ring]) -> None:
    writer, reader = ends
    for size in [0, 1, 63, 64, 65, 500, 1000, 1500] * 20:
        _, (array,) = reader.read(writer.write("", [np.full(size, 7, dtype=np.uint8)]))
        assert array.tolist() == [7] * size


def test_what_is_unread_is_never_overwritten(ends: tuple[Ring, Ring]) -> None:
    writer, reader = ends
    fitting = (SIZE - 64) // 256  # length, header, and 100 bytes on two lines of 64
    places = [writer.write("", [np.full(100, number, dtype=np.uint8)]) for number in range(fitting)]
    with pytest.raises(RingFullError):
        writer.write("", [np.zeros(100, dtype=np.uint8)])
    for number, place in enumerate(places):
        assert reader.read(place)[1][0].tolist() == [number] * 100
    writer.write("", [np.zeros(100)])


def test_a_message_beyond_the_ring_is_refused_and_changes_nothing(ends: tuple[Ring, Ring]) -> None:
    writer, reader = ends
    with pytest.raises(RingFullError) as caught:
        writer.write("", [np.zeros(SIZE, dtype=np.uint8)])
    assert caught.value.needed > caught.value.size
    assert reader.read(writer.write("still there", []))[0] == "still there"


def test_what_was_read_belongs_to_the_reader(ends: tuple[Ring, Ring]) -> None:
    writer, reader = ends
    _, (first,) = reader.read(writer.write("", [np.full(1000, 1, dtype=np.uint8)]))
    for _ in range(8):
        reader.read(writer.write("", [np.full(1000, 2, dtype=np.uint8)]))
    assert set(first.tolist()) == {1}


def test_frames_survive_being_cut_anywhere() -> None:
    frames = [Frame(n, Kind(n % 4), Place(n * 1000, n * 1000 + 2**40)) for n in range(5)]
    data = b"".join(map(encode_frame, frames))
    for cut in range(0, 2 * FRAME_BYTES, 5):
        received, found = bytearray(data[:cut]), list[Frame]()
        found += decode_frames(received)
        received += data[cut:]
        assert found + decode_frames(received) == frames
        assert not received
