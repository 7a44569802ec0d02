"""Kernels that begin while their predecessor ends: programmatic dependent launch, from Hopper on.

A decode step of few rows is a hundred short kernels, each of which would wait for the last program before it,
then for its launch, then for its first bytes from memory. Started early, a program is there when its
predecessor ends, and what it can name by then, mostly weights, is on the way to the cache.

The rule: a kernel calls `follow` before it reads or writes anything but weights and tables of constants.
`follow` waits until the predecessor's results are visible, and only then lets the successor start. So what
was written two launches ago may be read before `follow`, too, if the launch between is one of these, and no
chain of waiting kernels builds up. A kernel without `follow` must not be launched with `early()`; one that is
launched without `early()` waits as ever.
"""

from __future__ import annotations

from functools import cache

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .launching import INTERPRETED

ENABLED = 0
"""Off until a card has shown that results are the same and steps shorter. 1 as described; 2: a successor may
start at once, and nothing but weights may be read before `follow`."""


@cache
def _supported() -> bool:
    return not INTERPRETED and int(triton.runtime.driver.active.get_current_target().arch) >= 90


def early() -> dict[str, int]:
    """Options of a launch."""
    return {"EARLY": ENABLED, "launch_pdl": True} if ENABLED and _supported() else {"EARLY": 0}


@triton.jit
def follow(EARLY: tl.constexpr):
    """Wait for the predecessor, let the successor start."""
    if EARLY == 2:
        gdc_launch_dependents()
    if EARLY:
        gdc_wait()
    if EARLY == 1:
        gdc_launch_dependents()
