"""What every launch of a kernel asks about sizes and about where it runs."""

from __future__ import annotations

import os

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Kernels run on a CPU in Triton's interpreter, which knows no assembly."""


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`: ranges inside kernels have such sizes only."""
    return 1 << max(size - 1, 0).bit_length()


def dividing_step(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides `size`: a loop with it needs no mask."""
    return min(most, size & -size)


_COUNTERS: dict[tuple[str, torch.device, int], Tensor] = {}


def counters(name: str, device: torch.device, count: int) -> Tensor:
    """int32 zeros that the programs of a kernel count themselves in with, and leave at zero.

    Launches of one stream follow each other; those of two would count each other in. So every stream of a
    device has its own. A graph captured on another stream than its kernels ran on before takes the newest:
    what is allocated in a capture is zero only when that very graph has run.

    Raises `RuntimeError` for a captured launch that has not run before.
    """
    stream = _stream(device)
    found = _COUNTERS.get((name, device, stream))
    if found is not None:
        return found
    if _capturing(device):
        others = [kept for key, kept in _COUNTERS.items() if key[:2] == (name, device)]
        if not others:
            raise RuntimeError(f"{name}: captured before it has run once, so its counters are not there")
        return others[-1]
    made = torch.zeros(count, dtype=torch.int32, device=device)
    _COUNTERS[name, device, stream] = made
    return made


def _stream(device: torch.device) -> int:
    """The stream that the next launch goes to; 0 is the default one, and that of other devices."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
