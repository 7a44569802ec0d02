"""Rules about which layer reads whose keys, top-k, memory and features (model_spec 1.6)."""

from __future__ import annotations

from .config_types import TEXT, ConfigError, ModelConfig, require
from .engram_tables import engram_tables

_SUPPORTED_RATIOS = (0, 1, 2)
_LARGEST_DRAFT = 32


def ratios_cover_every_layer(config: ModelConfig) -> None:
    ratios, layers = config.compress_ratios, config.num_hidden_layers + config.num_nextn_predict_layers
    field = TEXT + "compress_ratios"
    require(len(ratios) == layers, field, ratios, f"{layers} ratios, one per trunk and draft layer")
    require(all(r in _SUPPORTED_RATIOS for r in ratios), field, ratios, f"ratios among {_SUPPORTED_RATIOS}")


def draft_layers_never_share(config: ModelConfig) -> None:
    drafts = config.compress_ratios[config.num_hidden_layers :]
    require(
        not any(drafts), TEXT + "compress_ratios", config.compress_ratios, "ratio 0 for every draft layer"
    )


def sources_are_compressed_layers(config: ModelConfig) -> None:
    for name in ("kv_source_layer_ids", "index_k_source_layer_ids", "index_source_layer_ids"):
        ids: tuple[int, ...] = getattr(config, name)
        require(list(ids) == sorted(set(ids)), TEXT + name, ids, "strictly ascending layer ids")
        compressed = [i for i in range(config.num_hidden_layers) if config.compress_ratios[i]]
        require(set(ids) <= set(compressed), TEXT + name, ids, f"layers with a ratio above 0: {compressed}")


def sources_form_a_chain(config: ModelConfig) -> None:
    """New compressed keys force new index keys, and new index keys force a new top-k."""
    kv, index_k = config.kv_source_layer_ids, config.index_k_source_layer_ids
    index = config.index_source_layer_ids
    require(
        set(kv) <= set(index_k), TEXT + "index_k_source_layer_ids", index_k, f"all KV sources {kv} and more"
    )
    require(
        set(index_k) <= set(index),
        TEXT + "index_source_layer_ids",
        index,
        f"all index key sources {index_k} and more",
    )


def layers_share_with_their_own_ratio(config: ModelConfig) -> None:
    """Every compressed layer has a KV source, and all layers from the source up to it have its ratio.

    So the segments that share a source are contiguous. The chain rule gives the other two sources the same.
    """
    ratios, field = config.compress_ratios, TEXT + "kv_source_layer_ids"
    for layer_id in range(config.num_hidden_layers):
        if not ratios[layer_id]:
            continue
        source = max((s for s in config.kv_source_layer_ids if s <= layer_id), default=None)
        allowed = f"a source at or below layer {layer_id}, which has ratio {ratios[layer_id]}"
        if source is None:
            raise ConfigError(field, config.kv_source_layer_ids, allowed)
        uniform = set(ratios[source : layer_id + 1]) == {ratios[layer_id]}
        require(
            uniform, field, config.kv_source_layer_ids, f"{allowed}, with that ratio on every layer between"
        )


def consumers_start_at_a_source(config: ModelConfig) -> None:
    boundary, sources = config.n_prefill_layer, config.kv_source_layer_ids
    allowed = f"a list with layer {boundary}, the first of ratio 1: keys are not shared across that boundary"
    require(boundary is None or boundary in sources, TEXT + "kv_source_layer_ids", sources, allowed)


def candidates_cover_a_top_k(config: ModelConfig) -> None:
    """Kept blocks hold at least a top-k of entries.

    The newest block may hold a single visible entry, so a row can still find fewer; its top-k is then padded.
    """
    source = config.candidate_source_layer_id
    if source is None:
        return
    index = config.index_source_layer_ids
    require(source in index, TEXT + "candidate_source_layer_id", source, f"null or an index source {index}")
    blocks, size = config.candidate_topk_blocks, config.candidate_block_size
    positive_eights = blocks > 0 and blocks % 8 == 0
    require(positive_eights, TEXT + "candidate_topk_blocks", blocks, "a positive multiple of 8")
    require(1 <= size <= 16, TEXT + "candidate_block_size", size, "1 to 16")
    allowed = f"at least index_topk / candidate_block_size = {config.index_topk} / {size}"
    require(blocks * size >= config.index_topk, TEXT + "candidate_topk_blocks", blocks, allowed)


def candidate_consumers_count_like_the_source(config: ModelConfig) -> None:
    source = config.candidate_source_layer_id
    if source is None:
        return
    later = {i for i in config.index_source_layer_ids if i > source}
    same = all(config.compress_ratios[i] == config.compress_ratios[source] for i in later)
    allowed = f"a layer with the ratio of all later index sources {sorted(later)}"
    require(same, TEXT + "candidate_source_layer_id", source, allowed)


def engram_layers_are_producers(config: ModelConfig) -> None:
    ids, field = config.engram_layer_ids, TEXT + "engram_layer_ids"
    boundary = config.n_prefill_layer
    last = config.num_hidden_layers if boundary is None else boundary
    require(len(set(ids)) == len(ids), field, ids, "distinct layer ids")
    require(
        all(0 <= i < last for i in ids),
        field,
        ids,
        f"layers below {last}: a truncated prompt skips the others",
    )


def engram_tables_have_the_declared_rows(config: ModelConfig) -> None:
    if not config.engram_layer_ids:
        return
    order = config.engram_max_ngram_size
    require(order >= 2, TEXT + "engram_max_ngram_size", order, "2 or more")
    compressed = config.engram_compressed_vocab_size
    allowed = f"0 (identity map) to vocab_size {config.vocab_size}"
    require(0 <= compressed <= config.vocab_size, TEXT + "engram_compressed_vocab_size", compressed, allowed)
    derived = tuple(table.rows for table in engram_tables(config))
    declared = config.engram_num_embeddings
    require(
        declared == derived,
        TEXT + "engram_num_embeddings",
        declared,
        f"the sums of the table primes, {derived}",
    )


def drafts_read_trunk_features(config: ModelConfig) -> None:
    if not config.num_nextn_predict_layers:
        return
    size, targets = config.dspark_block_size, config.dspark_target_layer_ids
    require(1 <= size <= _LARGEST_DRAFT, TEXT + "dspark_block_size", size, f"1 to {_LARGEST_DRAFT}")
    known = all(0 <= t < config.num_hidden_layers for t in targets)
    distinct = len(targets) > 0 and len(set(targets)) == len(targets)
    field = TEXT + "dspark_target_layer_ids"
    require(
        known and distinct, field, targets, f"distinct layers below {config.num_hidden_layers}, at least one"
    )
    boundary = config.n_prefill_layer
    sides = {boundary is not None and t >= boundary for t in targets}
    require(len(sides) == 1, field, targets, f"layers on one side of layer {boundary}")


TOPOLOGY_RULES = (
    ratios_cover_every_layer,
    draft_layers_never_share,
    sources_are_compressed_layers,
    sources_form_a_chain,
    layers_share_with_their_own_ratio,
    consumers_start_at_a_source,
    candidates_cover_a_top_k,
    candidate_consumers_count_like_the_source,
    engram_layers_are_producers,
    engram_tables_have_the_declared_rows,
    drafts_read_trunk_features,
)
"""In this order: a later rule may rely on the earlier ones."""
