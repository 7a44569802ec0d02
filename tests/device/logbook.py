"""An object for a device process to make: it writes down what was asked of it in a file both sides read."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Logbook:
    """Every method is one kind of work a test may ask for."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._path.touch()

    def append(self, arrays: list[Array]) -> None:
        with self._path.open("a") as file:
            file.write(f"{int(arrays[0][0])}\n")

    def fail(self, arrays: list[Array]) -> None:
        raise ValueError("scripted")

    def no_room(self, arrays: list[Array]) -> None:
        raise MemoryError

    def mark(self, arrays: list[Array]) -> None:
        """Nothing: its answer says that everything before it has ended."""

    def echo(self, arrays: list[Array]) -> list[Array]:
        return arrays

    def threads(self, arrays: list[Array]) -> list[Array]:
        return [np.array([int(os.environ["OMP_NUM_THREADS"])])]

    def die(self, arrays: list[Array]) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def hang(self, arrays: list[Array]) -> None:
        while True:
            time.sleep(60.0)


def broken(path: str) -> Logbook:
    """A factory that fails."""
    raise FileNotFoundError(path)
