"""The set of operations with Triton kernels behind the names that have one."""

from __future__ import annotations

from ..operations import Operations
from . import engram, hyper_connections, norm, streams


class TritonOperations(Operations):
    """For float32 and bfloat16 on NVIDIA devices; names without a kernel keep their reference."""

    name = "triton"

    rms_norm = staticmethod(norm.rms_norm)

    embed = staticmethod(streams.embed)
    open_sublayer = staticmethod(hyper_connections.open_sublayer)
    expand_and_open = staticmethod(hyper_connections.expand_and_open)
    expand = staticmethod(streams.expand)
    close_stack = staticmethod(streams.close_stack)
    mean_of_copies = staticmethod(streams.mean_of_copies)

    collect_ngrams = staticmethod(engram.collect_ngrams)
    recall = staticmethod(engram.recall)
    apply_memory = staticmethod(engram.apply_memory)


TRITON = TritonOperations()
"""The one instance: it has no state."""
