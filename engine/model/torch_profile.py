"""`torch.profiler` over a while of an engine's life, for traces that show operators and kernels too.

On demand only: a profiled operator costs twice an ordinary one, and stopping blocks the thread that started.
All threads of the process are seen, since a CPU device computes on one of its own; a device process is not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch._C._profiler import _ExperimentalConfig


class TorchProfile:
    """Started by its construction; started and stopped on one thread."""

    def __init__(self) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profile: Any = torch.profiler.profile(
            activities=activities, experimental_config=_ExperimentalConfig(profile_all_threads=True)
        )
        self._profile.start()

    def stop(self) -> None:
        self._profile.stop()

    def export(self, path: Path) -> None:
        """Writes what was seen as Chrome's JSON. Blocking; any thread."""
        self._profile.export_chrome_trace(str(path))
