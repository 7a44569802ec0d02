"""What every launch of a kernel asks about sizes and about where it runs."""

from __future__ import annotations

import os

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Kernels run on a CPU in Triton's interpreter, which knows no assembly."""


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`: ranges inside kernels have such sizes only."""
    return 1 << max(size - 1, 0).bit_length()


def dividing_step(size: int, most: int) -> int:
    """The largest power of two up to `most` that divides `size`: a loop with it needs no mask."""
    return min(most, size & -size)
