"""What must hold between the fields of a configuration, one small function per rule (model_spec 1.6).

A model whose configuration breaks one of these would not crash: it would read a cache that nobody wrote or
attend to the wrong entries. So every rule is checked before a weight is touched, and a rule that fails names
the field to look at. `msgspec.structs.replace` checks nothing, so tests can build illegal variants with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from .config_types import ConfigError, ModelConfig
from .engram_tables import engram_tables

TEXT = "text_config."

_POSITIVE = (
    "vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "num_attention_heads",
    "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_lora_rank", "o_groups", "sliding_window",
    "index_n_heads", "index_head_dim", "index_topk", "hc_mult", "hc_sinkhorn_iters", "n_shared_experts",
    "moe_intermediate_size", "rms_norm_eps", "hc_eps", "rope_theta", "compress_rope_theta",
    "routed_scaling_factor", "swiglu_limit",
)  # fmt: skip
_POSITIVE_WITH_ENGRAM = ("engram_vocab_size", "engram_n_heads", "engram_head_dim")
_POSITIVE_WITH_DRAFTS = ("dspark_markov_rank",)
_SUPPORTED_RATIOS = (0, 1, 2)
_GROUP = 32  # elements that share a scale along a weight's input dimension
_LARGEST_DRAFT = 32


def _require(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise ConfigError(field, value, allowed)


def _require_positive(config: ModelConfig, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value > 0 and math.isfinite(value), TEXT + name, value, "a positive number")


def sizes_are_positive(config: ModelConfig) -> None:
    _require_positive(config, _POSITIVE)
    if config.engram_layer_ids:
        _require_positive(config, _POSITIVE_WITH_ENGRAM)
    _require(
        config.num_nextn_predict_layers >= 0,
        TEXT + "num_nextn_predict_layers",
        config.num_nextn_predict_layers,
        "0 (no drafts) or more",
    )
    if config.num_nextn_predict_layers:
        _require_positive(config, _POSITIVE_WITH_DRAFTS)


def special_tokens_are_in_the_vocabulary(config: ModelConfig) -> None:
    fields = {name: getattr(config, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    if config.engram_layer_ids:
        fields[TEXT + "engram_pad_token_id"] = config.engram_pad_token_id
    if config.num_nextn_predict_layers:
        fields[TEXT + "dspark_noise_token_id"] = config.dspark_noise_token_id
    for name, value in fields.items():
        _require(0 <= value < config.vocab_size, name, value, f"an id below vocab_size {config.vocab_size}")
    # The image placeholder never reaches the embedding table, so it may lie behind the vocabulary.
    image = config.image_token_id
    _require(image is None or image >= 0, "image_token_id", image, "null or a non-negative id")
    _require(
        image is not None or config.vision is None, "image_token_id", image, "an id, as the model has vision"
    )


def tokenizer_policy_is_known(config: ModelConfig) -> None:
    policy = config.tokenizer_compatibility
    _require(policy in ("release", "native"), "tokenizer_compatibility", policy, "'release' or 'native'")


def rotary_dimensions_fit(config: ModelConfig) -> None:
    rotary = config.qk_rope_head_dim
    room = min(config.head_dim, config.index_head_dim)
    allowed = f"an even number up to {room}, the smaller of head_dim and index_head_dim"
    _require(rotary % 2 == 0 and rotary <= room, TEXT + "qk_rope_head_dim", rotary, allowed)


def yarn_is_ordered(config: ModelConfig) -> None:
    yarn = config.rope_scaling
    if yarn is None:
        return
    field = TEXT + "rope_scaling."
    _require(yarn.factor >= 1, field + "factor", yarn.factor, "1 or more")
    _require(yarn.beta_slow > 0, field + "beta_slow", yarn.beta_slow, "a positive number")
    _require(
        yarn.beta_fast > yarn.beta_slow,
        field + "beta_fast",
        yarn.beta_fast,
        f"more than beta_slow {yarn.beta_slow}",
    )
    length = yarn.original_max_position_embeddings
    _require(length > 0, field + "original_max_position_embeddings", length, "a positive number")


def heads_divide_into_output_groups(config: ModelConfig) -> None:
    heads, groups = config.num_attention_heads, config.o_groups
    _require(heads % groups == 0, TEXT + "o_groups", groups, f"a divisor of num_attention_heads {heads}")


def quantized_dimensions_are_whole_groups(config: ModelConfig) -> None:
    """Weights and activations share a scale per 32 input elements; a partial group has no format."""
    widths = {
        "hidden_size": config.hidden_size,
        "moe_intermediate_size": config.moe_intermediate_size,
        "head_dim": config.head_dim,
        "index_head_dim": config.index_head_dim,
        "q_lora_rank": config.q_lora_rank,
        "num_attention_heads * head_dim / o_groups": config.num_attention_heads
        * config.head_dim
        // config.o_groups,
        "o_groups * o_lora_rank": config.o_groups * config.o_lora_rank,
    }
    if config.engram_layer_ids:
        widths["engram_head_dim"] = config.engram_head_dim
    for name, width in widths.items():
        _require(width % _GROUP == 0, TEXT + name, width, f"a multiple of {_GROUP}, the quantization group")


def ratios_cover_every_layer(config: ModelConfig) -> None:
    ratios, layers = config.compress_ratios, config.num_hidden_layers + config.num_nextn_predict_layers
    field = TEXT + "compress_ratios"
    _require(len(ratios) == layers, field, ratios, f"{layers} ratios, one per trunk and draft layer")
    _require(all(r in _SUPPORTED_RATIOS for r in ratios), field, ratios, f"ratios among {_SUPPORTED_RATIOS}")


def draft_layers_never_share(config: ModelConfig) -> None:
    drafts = config.compress_ratios[config.num_hidden_layers :]
    _require(
        not any(drafts), TEXT + "compress_ratios", config.compress_ratios, "ratio 0 for every draft layer"
    )


def sources_are_compressed_layers(config: ModelConfig) -> None:
    for name in ("kv_source_layer_ids", "index_k_source_layer_ids", "index_source_layer_ids"):
        ids: tuple[int, ...] = getattr(config, name)
        _require(list(ids) == sorted(set(ids)), TEXT + name, ids, "strictly ascending layer ids")
        compressed = [i for i in range(config.num_hidden_layers) if config.compress_ratios[i]]
        _require(set(ids) <= set(compressed), TEXT + name, ids, f"layers with a ratio above 0: {compressed}")


def sources_form_a_chain(config: ModelConfig) -> None:
    """New compressed keys force new index keys, and new index keys force a new top-k."""
    kv, index_k = config.kv_source_layer_ids, config.index_k_source_layer_ids
    index = config.index_source_layer_ids
    _require(
        set(kv) <= set(index_k), TEXT + "index_k_source_layer_ids", index_k, f"all KV sources {kv} and more"
    )
    _require(
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
        _require(
            uniform, field, config.kv_source_layer_ids, f"{allowed}, with that ratio on every layer between"
        )


def consumers_start_at_a_source(config: ModelConfig) -> None:
    boundary, sources = config.n_prefill_layer, config.kv_source_layer_ids
    allowed = f"a list with layer {boundary}, the first of ratio 1: keys are not shared across that boundary"
    _require(boundary is None or boundary in sources, TEXT + "kv_source_layer_ids", sources, allowed)


def candidates_cover_a_top_k(config: ModelConfig) -> None:
    source = config.candidate_source_layer_id
    if source is None:
        return
    index = config.index_source_layer_ids
    _require(source in index, TEXT + "candidate_source_layer_id", source, f"null or an index source {index}")
    blocks, size = config.candidate_topk_blocks, config.candidate_block_size
    positive_eights = blocks > 0 and blocks % 8 == 0
    _require(positive_eights, TEXT + "candidate_topk_blocks", blocks, "a positive multiple of 8")
    _require(1 <= size <= 16, TEXT + "candidate_block_size", size, "1 to 16")
    allowed = f"at least index_topk / candidate_block_size = {config.index_topk} / {size}"
    _require(blocks * size >= config.index_topk, TEXT + "candidate_topk_blocks", blocks, allowed)


def candidate_consumers_count_like_the_source(config: ModelConfig) -> None:
    source = config.candidate_source_layer_id
    if source is None:
        return
    later = {i for i in config.index_source_layer_ids if i > source}
    same = all(config.compress_ratios[i] == config.compress_ratios[source] for i in later)
    allowed = f"a layer with the ratio of all later index sources {sorted(later)}"
    _require(same, TEXT + "candidate_source_layer_id", source, allowed)


def experts_can_be_chosen(config: ModelConfig) -> None:
    """At least two: with a single chosen expert the publisher's reference skips the weight normalisation."""
    prefixes = ("", "dspark_") if config.num_nextn_predict_layers else ("",)
    for prefix in prefixes:
        experts: int = getattr(config, prefix + "n_routed_experts")
        chosen: int = getattr(config, prefix + "num_experts_per_tok")
        _require(experts >= 2, f"{TEXT}{prefix}n_routed_experts", experts, "2 or more")
        _require(
            2 <= chosen <= experts, f"{TEXT}{prefix}num_experts_per_tok", chosen, f"2 to {experts} experts"
        )


def engram_layers_are_producers(config: ModelConfig) -> None:
    ids, field = config.engram_layer_ids, TEXT + "engram_layer_ids"
    boundary = config.n_prefill_layer
    last = config.num_hidden_layers if boundary is None else boundary
    _require(len(set(ids)) == len(ids), field, ids, "distinct layer ids")
    _require(
        all(0 <= i < last for i in ids),
        field,
        ids,
        f"layers below {last}: a truncated prompt skips the others",
    )


def engram_tables_have_the_declared_rows(config: ModelConfig) -> None:
    if not config.engram_layer_ids:
        return
    order = config.engram_max_ngram_size
    _require(order >= 2, TEXT + "engram_max_ngram_size", order, "2 or more")
    compressed = config.engram_compressed_vocab_size
    allowed = f"0 (identity map) to vocab_size {config.vocab_size}"
    _require(0 <= compressed <= config.vocab_size, TEXT + "engram_compressed_vocab_size", compressed, allowed)
    derived = tuple(table.rows for table in engram_tables(config))
    declared = config.engram_num_embeddings
    _require(
        declared == derived,
        TEXT + "engram_num_embeddings",
        declared,
        f"the sums of the table primes, {derived}",
    )


def drafts_read_trunk_features(config: ModelConfig) -> None:
    if not config.num_nextn_predict_layers:
        return
    size, targets = config.dspark_block_size, config.dspark_target_layer_ids
    _require(1 <= size <= _LARGEST_DRAFT, TEXT + "dspark_block_size", size, f"1 to {_LARGEST_DRAFT}")
    known = all(0 <= t < config.num_hidden_layers for t in targets)
    distinct = len(targets) > 0 and len(set(targets)) == len(targets)
    field = TEXT + "dspark_target_layer_ids"
    _require(
        known and distinct, field, targets, f"distinct layers below {config.num_hidden_layers}, at least one"
    )
    boundary = config.n_prefill_layer
    sides = {boundary is not None and t >= boundary for t in targets}
    _require(len(sides) == 1, field, targets, f"layers on one side of layer {boundary}")


def vision_tower_is_whole(config: ModelConfig) -> None:
    vision = config.vision
    if vision is None:
        return
    for name in (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "patch_size",
        "rope_theta", "downsample_ratio", "max_image_tokens", "min_pixels",
    ):  # fmt: skip
        value = getattr(vision, name)
        _require(value > 0, f"vision_config.{name}", value, "a positive number")
    width, heads = vision.hidden_size, vision.num_attention_heads
    allowed = f"a multiple of 4 * num_attention_heads = {4 * heads}, for two rotary axes per head"
    _require(width % (4 * heads) == 0, "vision_config.hidden_size", width, allowed)


RULES: tuple[Callable[[ModelConfig], None], ...] = (
    sizes_are_positive,
    special_tokens_are_in_the_vocabulary,
    tokenizer_policy_is_known,
    rotary_dimensions_fit,
    yarn_is_ordered,
    heads_divide_into_output_groups,
    quantized_dimensions_are_whole_groups,
    ratios_cover_every_layer,
    draft_layers_never_share,
    sources_are_compressed_layers,
    sources_form_a_chain,
    layers_share_with_their_own_ratio,
    consumers_start_at_a_source,
    candidates_cover_a_top_k,
    candidate_consumers_count_like_the_source,
    experts_can_be_chosen,
    engram_layers_are_producers,
    engram_tables_have_the_declared_rows,
    drafts_read_trunk_features,
    vision_tower_is_whole,
)
"""In this order: a later rule may rely on the earlier ones."""


def check_rules(config: ModelConfig) -> None:
    """Raise `ConfigError` for the first rule that `config` breaks."""
    for rule in RULES:
        rule(config)
