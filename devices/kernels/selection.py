"""Which set of operations a device runs.

Chosen once, when a model is opened, from what the device can do and what the model computes in. Nothing is
tried out at the first request: a missing package or an unsupported type means the reference set, which runs
everywhere, and `Operations.name` says which one it became.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

from ..device import Capabilities
from .operations import REFERENCE, Operations

OLDEST_ARCHITECTURE = (8, 0)
"""bfloat16 in the matrix units."""


def operations_for(capabilities: Capabilities, dtype: torch.dtype, quantized: bool) -> Operations:
    """The fastest set for a device and the types of a model (`dtype` of activations; `quantized`: the parity
    level, which rounds as the published engine does).

    Both levels use one set: its operations round exactly where their twins do.
    """
    if capabilities.kind != "nvidia" or capabilities.architecture < OLDEST_ARCHITECTURE:
        return REFERENCE
    if quantized and dtype != torch.bfloat16:
        return REFERENCE
    return triton_operations(dtype, capabilities.architecture)


def triton_operations(dtype: torch.dtype, architecture: tuple[int, int] = OLDEST_ARCHITECTURE) -> Operations:
    """The Triton set where it can serve: the package is installed and sums in float32 are wide enough. Where
    a library has a better kernel for the architecture, the set has that.
    """
    if dtype not in (torch.float32, torch.bfloat16) or find_spec("triton") is None:
        return REFERENCE
    from .triton.flash_attention import FlashOperations, flash_kernel
    from .triton.operations import TRITON

    kernel = flash_kernel(architecture) if dtype == torch.bfloat16 else None
    return TRITON if kernel is None else FlashOperations(kernel)
