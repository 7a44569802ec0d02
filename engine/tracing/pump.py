"""The thread that turns records into files, so that the loop never formats a line or waits for a disk.

It shares the interpreter's lock with the loop, which makes its manners matter more than its speed: it takes a
few dozen records at a time and then really sleeps, since a thread that only offers the lock keeps it for the
whole switch interval (5 ms). When the loop leaves it too little time, its helpings grow with what is waiting.

Invariant: a file gets exactly the records made between its opening and its closing, in order, and the thread
lives only while a file is open.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from .recorder import Recorder
from .trace_file import TraceFile

HELPING = 64
"""Records encoded in one go: about 60 us of the interpreter's lock."""
LARGEST_HELPING = 2048
BETWEEN_SECONDS = 0.0005
IDLE_SECONDS = 0.02


class Pump:
    """Writes every open file of one recorder. `open`, `close` are for the loop's thread."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._files: list[TraceFile] = []
        self._closing: list[_Closing] = []
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        """Whether a file is open."""
        return bool(self._files)

    def open(self, file: TraceFile) -> None:
        """From now on its records are written. What the recorder held before is not."""
        with self._lock:
            if not self._files:
                self._recorder.take(self._recorder.pending)  # into the ring
            self._files.append(file)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="stepahead-trace", daemon=True)
                self._thread.start()

    def close(self, file: TraceFile, events: Iterable[bytes] = ()) -> threading.Event:
        """Everything recorded so far, then `events`, still goes into the file; returns what is set then."""
        closing = _Closing(file, events, self._recorder.clock(), threading.Event())
        with self._lock:
            self._closing.append(closing)
        self._woken.set()
        return closing.done

    def _run(self) -> None:
        while True:
            with self._lock:
                closing, self._closing = self._closing, []
                if not self._files:
                    self._thread = None
                    return
            waiting = self._recorder.pending
            if closing:
                self._move(waiting)
                for each in closing:
                    self._end(each)
                continue
            if waiting:
                self._move(min(max(HELPING, waiting // 4), LARGEST_HELPING))
            else:
                self._flush()
            self._woken.wait(BETWEEN_SECONDS if waiting > HELPING else IDLE_SECONDS)
            self._woken.clear()

    def _move(self, count: int) -> None:
        recorder = self._recorder
        lost_some = recorder.pending == recorder.capacity
        records = recorder.take(count)
        for file in self._files:
            file.lost_some |= lost_some
            file.write(records)

    def _flush(self) -> None:
        for file in self._files:
            file.flush()

    def _end(self, closing: _Closing) -> None:
        try:
            closing.file.write_events(closing.events)
        except Exception as error:  # of whatever makes the events; the file is whole without them
            closing.file.error = error
        closing.file.close(closing.time)
        with self._lock:
            self._files.remove(closing.file)
        closing.done.set()


class _Closing:
    def __init__(self, file: TraceFile, events: Iterable[bytes], time: int, done: threading.Event) -> None:
        self.file, self.events, self.time, self.done = file, events, time, done
