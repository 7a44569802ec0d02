"""The set of operations with Triton kernels behind the names that have one."""

from __future__ import annotations

from ..operations import Operations
from . import (
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
    rounding,
    routing,
    sampling,
    sampling_drafts,
    sampling_settle,
    step_index,
    streams,
)


class TritonOperations(Operations):
    """For float32 and bfloat16 on NVIDIA devices; names without a kernel keep their reference."""

    name = "triton"

    linear = staticmethod(products.linear)
    wide_linear = staticmethod(products.wide_linear)
    grouped_linear = staticmethod(products.grouped_linear)
    route_rows = staticmethod(routing.route_rows)
    mix_experts = staticmethod(experts.mix_experts)
    rms_norm = staticmethod(norm.rms_norm)

    embed = staticmethod(streams.embed)
    embed_drafts = staticmethod(streams.embed_drafts)
    prepare_mix = staticmethod(hyper_connections.prepare_mix)
    open_sublayer = staticmethod(hyper_connections.open_sublayer)
    expand_and_open = staticmethod(hyper_connections.expand_and_open)
    expand = staticmethod(streams.expand)
    close_stack = staticmethod(streams.close_stack)
    mean_of_copies = staticmethod(streams.mean_of_copies)

    collect_ngrams = staticmethod(engram.collect_ngrams)
    recall = staticmethod(engram.recall)
    apply_memory = staticmethod(engram.apply_memory)

    open_state_pools = staticmethod(fix_ups.open_state_pools)
    fix_up_ = staticmethod(fix_ups.fix_up_)
    deal_lengths = staticmethod(dealing.deal_lengths)
    lay_decode = staticmethod(decode_rows.lay_decode)
    index_step = staticmethod(step_index.index_step)
    index_drafts = staticmethod(step_index.index_drafts)
    fp8_round_trip = staticmethod(rounding.fp8_round_trip)
    open_latents_ = staticmethod(latents.open_latents_)
    store_key_ = staticmethod(latents.store_key_)
    store_entry_ = staticmethod(latents.store_entry_)
    store_pooled_entry_ = staticmethod(latents.store_pooled_entry_)
    attend = staticmethod(attention.attend)
    visible_entries = staticmethod(indexer.visible_entries)
    choose_entries = staticmethod(indexer.choose_entries)

    expands_weights = True
    draws_from_tables = True
    draw_tokens = staticmethod(sampling.draw_tokens)
    settle_ = staticmethod(sampling_settle.settle_)
    draft_chain_ = staticmethod(sampling_drafts.draft_chain_)
    markov_table = staticmethod(sampling_drafts.markov_table)


TRITON = TritonOperations()
"""The one instance: it has no state."""
