"""How much memory this process may still use: the machine's, or the smaller share of its container."""

from __future__ import annotations

import os
from pathlib import Path

from .device import MemoryInfo

_LIMIT = Path("/sys/fs/cgroup/memory.max")
_USED = Path("/sys/fs/cgroup/memory.current")
_MACHINE = Path("/proc/meminfo")


def host_memory() -> MemoryInfo:
    """Total and available bytes. Page cache counts as available, since the kernel gives it back on demand."""
    machine = _machine()
    limit, used = _number(_LIMIT), _number(_USED)
    if limit is None or used is None or limit >= machine.total:
        return machine
    return MemoryInfo(total=limit, free=max(0, min(machine.free, limit - used)))


def _machine() -> MemoryInfo:
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    total = pages * page
    available = _available()
    return MemoryInfo(total=total, free=total // 2 if available is None else available)


def _available() -> int | None:
    """What Linux says can be had without swapping; None on other systems, which do not say."""
    try:
        lines = _MACHINE.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _number(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):  # no such controller, or the word "max"
        return None
