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

from .reference import (
    attention,
    dealing,
    decode_rows,
    engram,
    experts,
    fix_ups,
    hyper_connections,
    indexer,
    latents,
    norm,
    products,
    quantization,
    rotary,
    step_index,
)
from .reference.sampling import drafting, settling, whole


class Operations:
    """The reference set: plain torch, any device, any float type."""

    name = "reference"

    linear = staticmethod(products.linear)
    wide_linear = staticmethod(products.wide_linear)
    rms_norm = staticmethod(norm.rms_norm)
    rotate_ = staticmethod(rotary.rotate_)

    embed = staticmethod(hyper_connections.embed)
    embed_drafts = staticmethod(hyper_connections.embed_drafts)
    stack_copies = staticmethod(hyper_connections.stack_copies)
    prepare_mix = staticmethod(hyper_connections.prepare_mix)
    open_sublayer = staticmethod(hyper_connections.open_sublayer)
    expand_and_open = staticmethod(hyper_connections.expand_and_open)
    close_stack = staticmethod(hyper_connections.close_stack)
    mean_of_copies = staticmethod(hyper_connections.mean_of_copies)
    contract = staticmethod(hyper_connections.contract)
    expand = staticmethod(hyper_connections.expand)

    open_state_pools = staticmethod(fix_ups.open_state_pools)
    fix_up_ = staticmethod(fix_ups.fix_up_)
    deal_lengths = staticmethod(dealing.deal_lengths)
    lay_decode = staticmethod(decode_rows.lay_decode)
    index_step = staticmethod(step_index.index_step)
    index_window = staticmethod(step_index.index_window)
    index_drafts = staticmethod(step_index.index_drafts)

    fp8_round_trip = staticmethod(quantization.fp8_round_trip)
    open_latents_ = staticmethod(latents.open_latents_)
    keep_rows_ = staticmethod(latents.keep_rows_)
    store_key_ = staticmethod(latents.store_key_)
    store_entry_ = staticmethod(latents.store_entry_)
    store_pooled_entry_ = staticmethod(latents.store_pooled_entry_)
    attend = staticmethod(attention.attend)
    visible_entries = staticmethod(indexer.visible_entries)
    choose_entries = staticmethod(indexer.choose_entries)
    grouped_linear = staticmethod(products.grouped_linear)

    route_rows = staticmethod(experts.route_rows)
    mix_experts = staticmethod(experts.mix_experts)

    collect_ngrams = staticmethod(engram.collect_ngrams)
    hash_rows = staticmethod(engram.hash_rows)
    recall = staticmethod(engram.recall)
    apply_memory = staticmethod(engram.apply_memory)

    expands_weights = False
    """Whether products expand quantized weights in registers; else into memory, at every use."""
    draws_from_tables = False
    """Whether the next three are faster than a host that chooses the rows with work (`v41/processing.py`)."""
    draw_tokens = staticmethod(whole.draw_tokens)
    settle_ = staticmethod(settling.settle_)
    draft_chain_ = staticmethod(drafting.draft_chain_)
    markov_table = staticmethod(drafting.markov_table)


REFERENCE = Operations()
"""What a model runs unless told otherwise."""
