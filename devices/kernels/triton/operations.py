"""The set of operations with Triton kernels behind the names that have one."""

from __future__ import annotations

from ..operations import Operations


class TritonOperations(Operations):
    """For float32 and bfloat16 on NVIDIA devices; names without a kernel keep their reference."""

    name = "triton"


TRITON = TritonOperations()
"""The one instance: it has no state."""
