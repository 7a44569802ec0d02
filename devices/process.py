"""A device of its own process: the child computes without our interpreter's lock, we only ring and listen.

An eager CPU forward takes the interpreter lock after every operator and so hides almost none of the loop's
work; in a child it hides nearly all. The child is started as `python -m stepahead.devices.child`, never by
`multiprocessing`: that would import the user's main module again and demand a `__main__` guard of them.

Calls are written to a ring in shared memory, a doorbell descriptor wakes the loop when answers are there.
Invariants: calls run in order, one at a time; the first failure, or the child's death, settles every ticket
with `DeviceError` and refuses later calls; the child never outlives us, even if we are killed.
"""

from __future__ import annotations

import io
import mmap
import os
import pickle
import socket
import subprocess
import sys
import types
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from .cpu import default_threads
from .device import DeviceError, OutOfMemoryError, Ticket
from .poison import closed_error
from .ring import Array, Ring, anonymous_memory
from .wire import Failure, Frame, Kind, RingSizes, decode_frames, encode_frame

NAME = "the device process"
CLOSE_SECONDS = 1.0
"""How long closing waits for the child to end its running call before it is killed."""


KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
"""glibc gives large freed arrays back to the system, and every step would fault them in again: a tenth of the
time of a large one. The child is ours and keeps them; elsewhere these variables mean nothing."""


class ChildTracebackError(Exception):
    """The cause of a `DeviceError` that happened in the child: its traceback as text."""


class MainModuleError(TypeError):
    """Something defined in the program's main module cannot be sent: a child does not run that module."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is defined in __main__, which a device process does not import; move it to a module"
        )
        self.name = name


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (types.FunctionType, type)) and obj.__module__ == "__main__":
            raise MainModuleError(obj.__qualname__)
        return NotImplemented


def _pickled(value: object) -> Array:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=5).dump(value)
    return np.frombuffer(buffer.getvalue(), dtype=np.uint8)


class DeviceProcess:
    """A child that made one object and runs its methods in the order of the calls.

    Methods take a list of numpy arrays and return one, or None. Used from one event loop.
    """

    def __init__(
        self,
        factory: Callable[..., object],
        arguments: Sequence[object],
        loop: AbstractEventLoop,
        *,
        threads: int | None = None,
        rings: RingSizes = RingSizes(),  # noqa: B008  (frozen)
    ) -> None:
        """Starts the child, which calls `factory(*arguments)`: both pickled, importable, not of `__main__`.

        Returns at once; `started` settles when the object exists. `threads`: of numeric libraries in the
        child, by default one less than the cores. Raises `DeviceError` without a Python to start, and
        `MainModuleError`.
        """
        self._loop = loop
        self._results: dict[Ticket, list[Array]] = {}
        self._tickets: dict[int, Ticket] = {}
        self._received = bytearray()
        self._sequence = 0
        self.failure: DeviceError | None = None
        made = _pickled((factory, tuple(arguments)))
        self._socket, memory = self._spawn(default_threads() if threads is None else threads, rings)
        mapping = mmap.mmap(memory, rings.total)
        os.close(memory)
        self._requests = Ring(mapping, 0, rings.requests)
        self._answers = Ring(mapping, rings.requests, rings.answers)
        loop.add_reader(self._socket.fileno(), self._listen)
        self.started = self.call("make", [made])

    @property
    def pid(self) -> int:
        return self._child.pid

    def call(self, method: str, arrays: Sequence[Array]) -> Ticket:
        """Queues a call; the ticket settles when its result can be collected.

        Raises the failure of the process, or `RingFullError`.
        """
        ticket = Ticket()
        self._tickets[self._send(Kind.CALL, method, arrays)] = ticket
        return ticket

    def cast(self, method: str, arrays: Sequence[Array]) -> None:
        """Queues a call without an answer; if it fails, every later call reports that."""
        self._send(Kind.CAST, method, arrays)

    def collect(self, ticket: Ticket) -> list[Array]:
        """The arrays behind a settled ticket, once. Raises the ticket's error."""
        if ticket.error is not None:
            raise ticket.error
        return self._results.pop(ticket)

    def close(self) -> None:
        """Settles all tickets and ends the child: politely, or after `CLOSE_SECONDS` by force. Idempotent."""
        self._fail(closed_error(NAME))
        self._finalizer()

    def _spawn(self, threads: int, rings: RingSizes) -> tuple[socket.socket, int]:
        ours, theirs = socket.socketpair()
        memory = anonymous_memory(rings.total)
        numbers = (theirs.fileno(), memory, rings.requests, rings.answers, os.getpid())
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(entry or os.getcwd() for entry in sys.path),
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            **KEPT_MEMORY,
        }
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "stepahead.devices.child", *map(str, numbers)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), memory),
                env=environment,
            )
        except OSError as error:
            ours.close()
            os.close(memory)
            raise DeviceError(f"{NAME} cannot be started with {sys.executable!r}: {error}") from error
        finally:
            theirs.close()
        ours.setblocking(False)
        self._finalizer = weakref.finalize(self, _end, self._child, ours)
        return ours, memory

    def _send(self, kind: Kind, method: str, arrays: Sequence[Array]) -> int:
        if self.failure is not None:
            raise self.failure
        place = self._requests.write(method, arrays)
        sequence, self._sequence = self._sequence, self._sequence + 1
        try:
            self._socket.send(encode_frame(Frame(sequence, kind, place)))
        except OSError:  # it died; the loop will hear so too
            self._died()
            raise self.failure or closed_error(NAME) from None
        return sequence

    def _listen(self) -> None:
        try:
            received = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._died()
            return
        self._received += received
        for frame in decode_frames(self._received):
            self._answered(frame)

    def _answered(self, frame: Frame) -> None:
        text, arrays = self._answers.read(frame.place)
        if frame.kind is Kind.FAILED:
            self._fail(_error(msgspec.json.decode(text, type=Failure)))
        elif (ticket := self._tickets.pop(frame.sequence, None)) is not None:
            self._results[ticket] = arrays
            ticket.settle()

    def _died(self) -> None:
        try:
            code: object = self._child.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            code = "unknown yet"
        self._fail(DeviceError(f"{NAME} {self.pid} ended by itself with code {code}"))

    def _fail(self, error: DeviceError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        self._loop.remove_reader(self._socket.fileno())
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            ticket.settle(error)


def _error(failure: Failure) -> DeviceError:
    kind = OutOfMemoryError if failure.no_room else DeviceError
    error = kind(f"in {NAME}: {failure.message}")
    error.__cause__ = ChildTracebackError(failure.trace)
    return error


def _end(child: subprocess.Popen[bytes], bell: socket.socket) -> None:
    """Also runs when the process object is lost, and when the interpreter ends."""
    bell.close()
    try:
        child.wait(timeout=CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
