"""What can be wrong with a CUDA device, in types a caller can tell apart."""

from __future__ import annotations

from .device import DeviceError
from .poison import poison

_SYNCHRONISED = "called a synchronizing CUDA operation"
"""How torch words the error of its debug mode; it has no type of its own."""


class DeviceUnavailableError(DeviceError):
    """The device that was asked for does not exist here."""

    def __init__(self, asked: str, reason: str) -> None:
        super().__init__(f"no device {asked!r}: {reason}")
        self.asked, self.reason = asked, reason


class SynchronisationError(DeviceError):
    """Enqueued work waited for the device, which would end the engine's running ahead of it."""

    def __init__(self, label: str) -> None:
        super().__init__(f"{label or 'work'} waits for the device, which enqueued work never may")
        self.label = label


def launch_error(label: str, error: BaseException) -> DeviceError:
    """The poison for what a piece of work raised while it was launched."""
    if _SYNCHRONISED not in str(error):
        return poison(label, error)
    synchronised = SynchronisationError(label)
    synchronised.__cause__ = error
    return synchronised
