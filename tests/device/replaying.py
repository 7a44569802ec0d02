"""A device with graphs and without a card: replaying one runs its work again.

Valid for exactly what a captured step must be: work that reads fixed buffers only and asks for no value. So
everything about captured steps but the card itself is tested here. Allocations and captures can be made to
fail by their label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from stepahead.devices.cpu import CpuDevice
from stepahead.devices.device import Capabilities, Graph, MemoryInfo, OutOfMemoryError, Work
from stepahead.devices.poison import poison


class _Replay(Graph):
    def __init__(self, work: Work, replayed: Callable[[], None]) -> None:
        self._work, self._replayed = work, replayed

    def replay(self) -> None:
        self._replayed()
        self._work()


class ReplayingDevice(CpuDevice):
    """`fails(label)` is asked at every capture, and with the label of each piece of work."""

    def __init__(
        self,
        *,
        inline: bool = True,
        fails: Callable[[str], bool] = lambda label: False,
        memory: MemoryInfo | None = None,
    ) -> None:
        super().__init__(1, inline=inline)
        self._fails, self._memory = fails, memory
        self.captured: list[str] = []
        self.replays = 0
        self.closes = 0

    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, graphs=True)

    def capture(self, work: Work, label: str = "") -> Graph:
        if self._fails(label):
            raise OutOfMemoryError(f"capture of {label} failed")
        self.captured.append(label)
        work()
        return _Replay(work, self._count)

    def _count(self) -> None:
        self.replays += 1

    def memory(self) -> MemoryInfo:
        return super().memory() if self._memory is None else self._memory

    @contextmanager
    def placing(self) -> Iterator[None]:
        if self._fails("loading"):
            raise OutOfMemoryError("loading failed")
        try:
            yield
        except MemoryError as error:
            raise poison("loading", error) from error

    @property
    def compute(self) -> Any:
        return _Failing(super().compute, self._fails)

    def close(self) -> None:
        self.closes += 1
        super().close()


class _Failing:
    """A stream some of whose work runs out of memory."""

    def __init__(self, stream: Any, fails: Callable[[str], bool]) -> None:
        self._stream, self._fails = stream, fails

    def enqueue(self, work: Work, label: str = "") -> None:
        self._stream.enqueue(_no_room if self._fails(label) else work, label)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _no_room() -> None:
    raise MemoryError("no room")
