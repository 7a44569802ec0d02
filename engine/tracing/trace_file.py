"""One trace on disk: bounded, streamed, and readable up to wherever it was cut.

Ten minutes at a thousand steps per second are 600,000 steps of about 1.5 KB. A file stops growing at
`max_bytes` (1 GiB holds that), says so in its last event, and keeps what came first; the ring still has what
came last. A path that ends in `.gz` is compressed about ten times, and opens in ui.perfetto.dev as it is.

Invariant: at every moment the bytes on disk are a prefix of a valid file; a crash loses at most what the
operating system had not been given yet.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable
from io import BufferedIOBase
from pathlib import Path

from .encoder import Encoder
from .recorder import Record

MAX_BYTES = 1 << 30
COMPRESSION = 1  # of 9: the lines are so alike that more effort gains little


class TraceFile:
    """Written by one thread at a time. Errors of the disk end the writing and are kept in `error`."""

    def __init__(
        self, path: Path, encoder: Encoder, facts: dict[str, object], max_bytes: int = MAX_BYTES
    ) -> None:
        """Creates the file, or raises OSError. `facts` are told in its first event."""
        self.path, self._encoder, self._room = path, encoder, max_bytes
        self._file = _created(path)
        self.records = 0
        self.lost_some = False  # records came faster than they were taken
        self.truncated = False
        self.error: Exception | None = None
        self._write(encoder.head(facts))
        self.flush()  # a file that is there is a trace, however early somebody looks or everything ends

    def write(self, records: list[Record]) -> None:
        if self._room > 0:
            self.records += len(records)
            self._write(self._encoder.encode(records))
            self.truncated = self._room <= 0

    def write_events(self, lines: Iterable[bytes]) -> None:
        """Lines of another source on the same clock."""
        for line in lines:
            if self._room > 0:
                self._write(line)

    def flush(self) -> None:
        if self.error is None:
            self._guarded(self._file.flush)

    def close(self, time: int) -> None:
        """Ends the file at `time` on the recorder's clock. Idempotent."""
        if self._file.closed:
            return
        facts: dict[str, object] = {
            "records": self.records,
            "truncated": self.truncated,
            "lost some": self.lost_some,
        }
        self._write(self._encoder.tail(time, facts))
        self._guarded(self._file.close)

    def _write(self, lines: bytes) -> None:
        self._room -= len(lines)
        if self.error is None:
            self._guarded(lambda: self._file.write(lines))

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            self.error = self.error or error


def _created(path: Path) -> BufferedIOBase:
    return gzip.open(path, "wb", COMPRESSION) if path.suffix == ".gz" else path.open("wb")
