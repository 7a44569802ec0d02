"""How a failure of work becomes the error of its stream, the same for every device.

Callers tell apart "the device is gone" and "it had no room", whatever library noticed; everything else about
the failure is in `__cause__`.
"""

from __future__ import annotations

from .device import DeviceError, OutOfMemoryError

_NO_ROOM = ("can't allocate memory", "out of memory", "_ALLOC_FAILED")
"""As torch says it for a CPU and a card, and as NVIDIA's libraries do when they make room for themselves."""


def poison(label: str, error: BaseException) -> DeviceError:
    """The error that later work and events of the stream report. `error` becomes its `__cause__`."""
    if isinstance(error, DeviceError):
        return error
    no_room = isinstance(error, MemoryError) or any(words in str(error) for words in _NO_ROOM)
    kind = OutOfMemoryError if no_room else DeviceError
    poisoned = kind(f"{label or 'work'} failed: {type(error).__name__}: {error}")
    poisoned.__cause__ = error
    return poisoned


def closed_error(name: str) -> DeviceError:
    """What is reported for work that a closed device will not do."""
    return DeviceError(f"{name} was closed")
