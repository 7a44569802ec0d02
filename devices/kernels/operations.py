"""The operations of a model by name: one readable implementation of each, and faster ones in its place.

A model must run where no fast kernel exists, be compared with one that is obviously right, and take whatever
the installed device does best. So it calls operations by name on one object it is given. This class is that
object with the reference implementation behind every name; a faster set is a subclass that overrides some
names, and the type checker sees to it that an override takes and returns the same. Rejected: a registry of
strings, which finds a missing kernel at the first request, and branches on the device inside the model.

Every operation follows the rules of `reference`: shapes follow from shapes, nothing is read back to the host,
rows do not depend on their neighbours.
"""

from __future__ import annotations

from torch.nn import functional

from .reference import (
    attention,
    compressor,
    engram,
    experts,
    hyper_connections,
    indexer,
    norm,
    rotary,
)


class Operations:
    """The reference set: plain torch, any device, any float type."""

    name = "reference"

    linear = staticmethod(functional.linear)
    wide_linear = staticmethod(norm.wide_linear)
    rms_norm = staticmethod(norm.rms_norm)
    rotate_ = staticmethod(rotary.rotate_)

    open_sublayer = staticmethod(hyper_connections.open_sublayer)
    contract = staticmethod(hyper_connections.contract)
    expand = staticmethod(hyper_connections.expand)

    sparse_attention = staticmethod(attention.sparse_attention)
    pool_group = staticmethod(compressor.pool_group)
    index_scores = staticmethod(indexer.index_scores)
    select_topk = staticmethod(indexer.select_topk)
    select_blocks = staticmethod(indexer.select_blocks)

    gate_scores = staticmethod(experts.gate_scores)
    route = staticmethod(experts.route)
    swiglu = staticmethod(experts.swiglu)

    mask_ngrams = staticmethod(engram.mask_ngrams)
    hash_rows = staticmethod(engram.hash_rows)
    apply_memory = staticmethod(engram.apply_memory)


REFERENCE = Operations()
"""What a model runs unless told otherwise."""
