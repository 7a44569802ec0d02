"""What each layer of a model does, decided once from the configuration (model_spec 1.6).

Attention layers differ only in where their compressed keys and their top-k selection come from. Everything
else reads this table instead of comparing layer ids again.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from .config_types import ModelConfig


class Selection(Enum):
    """How a layer obtains the compressed entries it attends to."""

    WINDOW = "window"  # none: the sliding window only
    FULL = "full"  # its own keys and its own top-k
    REINDEX = "reindex"  # keys of an earlier layer, its own top-k
    REUSE = "reuse"  # keys and top-k of an earlier layer


class LayerRole(msgspec.Struct, frozen=True, kw_only=True):
    """The duties of one layer. Layer ids are absolute; draft layers follow the trunk."""

    layer_id: int
    ratio: int
    selection: Selection
    kv_source: int | None  # layer whose compressed keys are read
    index_k_source: int | None  # layer whose indexer keys are scored
    index_source: int | None  # layer whose top-k is used
    is_kv_source: bool
    is_index_k_source: bool
    is_index_source: bool
    is_candidate_source: bool
    uses_candidates: bool  # its top-k is restricted to the candidate source's blocks
    has_engram: bool
    is_consumer: bool  # at or above the YOCO boundary
    feeds_draft: bool  # its attention input is a DSpark feature
    is_draft: bool


def _source(layer_id: int, sources: tuple[int, ...]) -> int | None:
    """The largest source id at or below `layer_id`."""
    return max((s for s in sources if s <= layer_id), default=None)


def _trunk_role(config: ModelConfig, layer_id: int) -> LayerRole:
    ratio = config.compress_ratios[layer_id]
    kv = _source(layer_id, config.kv_source_layer_ids) if ratio else None
    index_k = _source(layer_id, config.index_k_source_layer_ids) if ratio else None
    index = _source(layer_id, config.index_source_layer_ids) if ratio else None
    is_index_source = ratio > 0 and index == layer_id
    is_index_k_source = ratio > 0 and index_k == layer_id
    candidate = config.candidate_source_layer_id
    boundary = config.n_prefill_layer
    if not ratio:
        selection = Selection.WINDOW
    elif is_index_k_source:
        selection = Selection.FULL
    else:
        selection = Selection.REINDEX if is_index_source else Selection.REUSE
    return LayerRole(
        layer_id=layer_id,
        ratio=ratio,
        selection=selection,
        kv_source=kv,
        index_k_source=index_k,
        index_source=index,
        is_kv_source=ratio > 0 and kv == layer_id,
        is_index_k_source=is_index_k_source,
        is_index_source=is_index_source,
        is_candidate_source=candidate == layer_id,
        uses_candidates=is_index_source and candidate is not None and layer_id > candidate,
        has_engram=layer_id in config.engram_layer_ids,
        is_consumer=boundary is not None and layer_id >= boundary,
        feeds_draft=layer_id in config.dspark_target_layer_ids,
        is_draft=False,
    )


def _draft_role(layer_id: int) -> LayerRole:
    return LayerRole(
        layer_id=layer_id, ratio=0, selection=Selection.WINDOW, kv_source=None, index_k_source=None,
        index_source=None, is_kv_source=False, is_index_k_source=False, is_index_source=False,
        is_candidate_source=False, uses_candidates=False, has_engram=False, is_consumer=True,
        feeds_draft=False, is_draft=True,
    )  # fmt: skip


def layer_roles(config: ModelConfig) -> tuple[LayerRole, ...]:
    """Roles of all trunk layers in order, then of the draft layers."""
    trunk = [_trunk_role(config, i) for i in range(config.num_hidden_layers)]
    first_draft = config.num_hidden_layers
    drafts = [_draft_role(first_draft + i) for i in range(config.num_nextn_predict_layers)]
    return (*trunk, *drafts)
