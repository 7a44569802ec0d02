"""The other end of `DeviceProcess`: makes one object, then runs its methods as asked until the parent leaves.

Run as `python -m stepahead.devices.child`, by `process.py` only. The parent's end shows twice: the socket
closes, which an idle child sees at once, and `getppid` changes, which a thread looks at every second for a
child that computes or hangs. The terminal's interrupt is the parent's business and ignored here.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

import msgspec

from .device import OutOfMemoryError
from .poison import poison
from .ring import Array, Ring
from .wire import FRAME_BYTES, Failure, Frame, Kind, decode_frames, encode_frame

ORPHANED = 3
"""Exit code of a child whose parent is gone."""


def main(arguments: list[str]) -> None:
    bell_descriptor, memory, request_bytes, answer_bytes, parent = map(int, arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    mapping = mmap.mmap(memory, request_bytes + answer_bytes)
    os.close(memory)
    with socket.socket(fileno=bell_descriptor) as bell:
        _Service(bell, Ring(mapping, 0, request_bytes), Ring(mapping, request_bytes, answer_bytes)).serve()


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(ORPHANED)


class _Service:
    def __init__(self, bell: socket.socket, requests: Ring, answers: Ring) -> None:
        self._bell, self._requests, self._answers = bell, requests, answers
        self._target: Any = None
        self._failure: str | None = None  # the first one, encoded: later calls are skipped and repeat it

    def serve(self) -> None:
        """Until the parent closes its end."""
        received = bytearray()
        while data := self._receive():
            received += data
            for frame in decode_frames(received):
                self._serve(frame)

    def _receive(self) -> bytes:
        try:
            return self._bell.recv(64 * FRAME_BYTES)
        except ConnectionError:
            return b""

    def _serve(self, frame: Frame) -> None:
        method, arrays = self._requests.read(frame.place)
        result: list[Array] | None = None
        first = self._failure is None
        if first:
            try:
                result = self._run(method, arrays)
            except Exception as error:
                self._failure = _encoded(method, error)
        if self._failure is not None:
            if first or frame.kind is Kind.CALL:
                self._answer(frame.sequence, Kind.FAILED, self._failure, [])
        elif frame.kind is Kind.CALL:
            self._answer(frame.sequence, Kind.DONE, "", result or [])

    def _run(self, method: str, arrays: list[Array]) -> list[Array] | None:
        if self._target is None:
            factory, arguments = pickle.loads(arrays[0].tobytes())
            self._target = factory(*arguments)
            return None
        returned: list[Array] | None = getattr(self._target, method)(arrays)
        return returned

    def _answer(self, sequence: int, kind: Kind, text: str, arrays: list[Array]) -> None:
        place = self._answers.write(text, arrays)
        try:
            self._bell.sendall(encode_frame(Frame(sequence, kind, place)))
        except ConnectionError:  # the parent has left; the next receive says so
            return


def _encoded(method: str, error: Exception) -> str:
    poisoned = poison(method, error)
    trace = "".join(traceback.format_exception(error))
    failure = Failure(str(poisoned), trace, isinstance(poisoned, OutOfMemoryError))
    return msgspec.json.encode(failure).decode()


if __name__ == "__main__":
    main(sys.argv[1:])
