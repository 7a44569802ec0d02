"""Points in a CUDA stream, and what went wrong up to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .device import DeviceError, Event
from .poison import poison

if TYPE_CHECKING:
    import torch


class Mark(Event):
    """`serial` counts the marks of its stream. An error known when it was recorded is its error for good."""

    __slots__ = ("_error", "_reached", "cuda", "serial", "stream")

    def __init__(self, stream: str, serial: int, cuda: torch.cuda.Event, error: DeviceError | None) -> None:
        self.stream, self.serial, self.cuda = stream, serial, cuda
        self._error, self._reached = error, False

    @property
    def reached(self) -> bool:
        if not self._reached:
            try:
                self._reached = self.cuda.query()
            except Exception as error:
                self._fail(error)
        return self._reached

    @property
    def error(self) -> BaseException | None:
        return self._error

    def block(self) -> None:
        """Returns when it is reached; for threads that may wait. A fault of the card becomes its error."""
        if self._reached:
            return
        try:
            self.cuda.synchronize()
            self._reached = True
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """A kernel that was launched well has failed since: torch reports it at whatever call comes next."""
        self._error = self._error or poison("work on the card", error)
        self._reached = True
