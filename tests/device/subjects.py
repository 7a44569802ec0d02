"""The devices under one small face, so that one suite of the contract runs on all of them.

Streams take callables, the device process takes names of methods; both append numbers in order, fail, and
mark points. That is all the contract speaks of.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import numpy as np

from stepahead.devices.cpu import CpuDevice
from stepahead.devices.device import Device, Ticket
from stepahead.devices.nvidia import NvidiaDevice
from stepahead.devices.process import DeviceProcess
from stepahead.devices.simulated import SimulatedDevice

from .logbook import Logbook


class Subject(ABC):
    """One ordered queue of work on some device."""

    runs_on_enqueue = False

    @abstractmethod
    def append(self, value: int) -> None: ...

    @abstractmethod
    def fail(self) -> None:
        """Queues work that raises `ValueError("scripted")`."""

    @abstractmethod
    def fail_for_room(self) -> None:
        """Queues work that raises `MemoryError`."""

    @abstractmethod
    def watch(self) -> Ticket:
        """A ticket for the present end of the queue."""

    @abstractmethod
    def log(self) -> list[int]:
        """Numbers appended so far."""

    @abstractmethod
    def close(self) -> None: ...


class DeviceSubject(Subject):
    def __init__(self, device: Device) -> None:
        self._device = device
        self._log: list[int] = []
        self._loop = asyncio.get_running_loop()
        self.runs_on_enqueue = device.capabilities.runs_on_enqueue

    def append(self, value: int) -> None:
        self._device.compute.enqueue(lambda: self._log.append(value), f"append:{value}")

    def fail(self) -> None:
        def work() -> None:
            raise ValueError("scripted")

        self._device.compute.enqueue(work, "fail")

    def fail_for_room(self) -> None:
        def work() -> None:
            raise MemoryError

        self._device.compute.enqueue(work, "fail")

    def watch(self) -> Ticket:
        return self._device.watch(self._device.compute.record(), self._loop)

    def log(self) -> list[int]:
        return list(self._log)

    def close(self) -> None:
        self._device.close()


class ProcessSubject(Subject):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = DeviceProcess(Logbook, (str(path),), asyncio.get_running_loop())

    def append(self, value: int) -> None:
        self._process.cast("append", [np.array([value])])

    def fail(self) -> None:
        self._process.cast("fail", [])

    def fail_for_room(self) -> None:
        self._process.cast("no_room", [])

    def watch(self) -> Ticket:
        return self._process.call("mark", [])

    def log(self) -> list[int]:
        return [int(line) for line in self._path.read_text().split()]

    def close(self) -> None:
        self._process.close()


Opener = Callable[[Path], Subject]
ON_CARDS = frozenset({"nvidia"})
"""Subjects that need hardware."""

SUBJECTS: dict[str, Opener] = {
    "cpu-inline": lambda folder: DeviceSubject(CpuDevice(inline=True)),
    "cpu-thread": lambda folder: DeviceSubject(CpuDevice(threads=1)),
    "nvidia": lambda folder: DeviceSubject(NvidiaDevice()),
    "process": lambda folder: ProcessSubject(folder / "log"),
    "simulated": lambda folder: DeviceSubject(SimulatedDevice(asyncio.get_running_loop())),
    "simulated-real-time": lambda folder: DeviceSubject(
        SimulatedDevice(asyncio.get_running_loop(), latency=lambda label: 1e-4, real_time=True)
    ),
}
