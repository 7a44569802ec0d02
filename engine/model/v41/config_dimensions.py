"""Rules about sizes, token ids and other numbers that need no knowledge of layers (model_spec 1.1 to 1.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from .config_types import TEXT, ModelConfig, require

_POSITIVE = (
    "vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings", "num_attention_heads",
    "head_dim", "qk_rope_head_dim", "q_lora_rank", "o_lora_rank", "o_groups", "sliding_window",
    "index_n_heads", "index_head_dim", "index_topk", "hc_mult", "hc_sinkhorn_iters", "n_shared_experts",
    "moe_intermediate_size", "rms_norm_eps", "hc_eps", "rope_theta", "compress_rope_theta",
    "routed_scaling_factor", "swiglu_limit",
)  # fmt: skip
_POSITIVE_WITH_ENGRAM = ("engram_vocab_size", "engram_n_heads", "engram_head_dim")
_POSITIVE_WITH_DRAFTS = ("dspark_markov_rank",)
_GROUP = 32  # elements that share a scale along a weight's input dimension


def _require_positive(config: ModelConfig, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(config, name)
        require(value > 0 and math.isfinite(value), TEXT + name, value, "a positive number")


def sizes_are_positive(config: ModelConfig) -> None:
    _require_positive(config, _POSITIVE)
    if config.engram_layer_ids:
        _require_positive(config, _POSITIVE_WITH_ENGRAM)
    require(
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
        require(0 <= value < config.vocab_size, name, value, f"an id below vocab_size {config.vocab_size}")
    # The image placeholder never reaches the embedding table, so it may lie behind the vocabulary.
    image = config.image_token_id
    require(image is None or image >= 0, "image_token_id", image, "null or a non-negative id")
    require(
        image is not None or config.vision is None, "image_token_id", image, "an id, as the model has vision"
    )


def tokenizer_policy_is_known(config: ModelConfig) -> None:
    policy = config.tokenizer_compatibility
    require(policy in ("release", "native"), "tokenizer_compatibility", policy, "'release' or 'native'")


def rotary_dimensions_fit(config: ModelConfig) -> None:
    rotary = config.qk_rope_head_dim
    room = min(config.head_dim, config.index_head_dim)
    allowed = f"an even number up to {room}, the smaller of head_dim and index_head_dim"
    require(rotary % 2 == 0 and rotary <= room, TEXT + "qk_rope_head_dim", rotary, allowed)


def yarn_is_ordered(config: ModelConfig) -> None:
    yarn = config.rope_scaling
    if yarn is None:
        return
    field = TEXT + "rope_scaling."
    require(yarn.factor >= 1, field + "factor", yarn.factor, "1 or more")
    require(yarn.beta_slow > 0, field + "beta_slow", yarn.beta_slow, "a positive number")
    require(
        yarn.beta_fast > yarn.beta_slow,
        field + "beta_fast",
        yarn.beta_fast,
        f"more than beta_slow {yarn.beta_slow}",
    )
    length = yarn.original_max_position_embeddings
    require(length > 0, field + "original_max_position_embeddings", length, "a positive number")


def heads_divide_into_output_groups(config: ModelConfig) -> None:
    heads, groups = config.num_attention_heads, config.o_groups
    require(heads % groups == 0, TEXT + "o_groups", groups, f"a divisor of num_attention_heads {heads}")


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
        require(width % _GROUP == 0, TEXT + name, width, f"a multiple of {_GROUP}, the quantization group")


def experts_can_be_chosen(config: ModelConfig) -> None:
    """At least two: with a single chosen expert the publisher's reference skips the weight normalisation."""
    prefixes = ("", "dspark_") if config.num_nextn_predict_layers else ("",)
    for prefix in prefixes:
        experts: int = getattr(config, prefix + "n_routed_experts")
        chosen: int = getattr(config, prefix + "num_experts_per_tok")
        require(experts >= 2, f"{TEXT}{prefix}n_routed_experts", experts, "2 or more")
        require(
            2 <= chosen <= experts, f"{TEXT}{prefix}num_experts_per_tok", chosen, f"2 to {experts} experts"
        )


def confidence_temperatures_cover_the_block(config: ModelConfig) -> None:
    temperatures, block = config.dspark_confidence_temperatures, config.dspark_block_size
    fits = not temperatures or len(temperatures) == block
    fits &= all(math.isfinite(t) and t > 0 for t in temperatures)
    field = TEXT + "dspark_confidence_temperatures"
    require(fits, field, temperatures, f"absent, or {block} positive numbers, one for each draft")


def peak_calibration_covers_the_block(config: ModelConfig) -> None:
    pairs, block = config.dspark_peak_calibration, config.dspark_block_size
    fits = not pairs or len(pairs) == block
    fits &= all(math.isfinite(scale) and scale > 0 and math.isfinite(offset) for scale, offset in pairs)
    allowed = f"absent, or {block} pairs of a positive scale and an offset"
    require(fits, TEXT + "dspark_peak_calibration", pairs, allowed)


def vision_tower_is_whole(config: ModelConfig) -> None:
    vision = config.vision
    if vision is None:
        return
    for name in (
        "num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "patch_size",
        "rope_theta", "downsample_ratio", "max_image_tokens", "min_pixels",
    ):  # fmt: skip
        value = getattr(vision, name)
        require(value > 0, f"vision_config.{name}", value, "a positive number")
    width, heads = vision.hidden_size, vision.num_attention_heads
    allowed = f"a multiple of 4 * num_attention_heads = {4 * heads}, for two rotary axes per head"
    require(width % (4 * heads) == 0, "vision_config.hidden_size", width, allowed)


DIMENSION_RULES = (
    sizes_are_positive,
    special_tokens_are_in_the_vocabulary,
    tokenizer_policy_is_known,
    rotary_dimensions_fit,
    yarn_is_ordered,
    heads_divide_into_output_groups,
    quantized_dimensions_are_whole_groups,
    experts_can_be_chosen,
    confidence_temperatures_cover_the_block,
    peak_calibration_covers_the_block,
    vision_tower_is_whole,
)
"""In this order: a later rule may rely on the earlier ones."""
