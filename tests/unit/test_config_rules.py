"""Every rule between the fields of a configuration: broken alone, it blames the field to look at."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stepahead.engine.model.v41.config import ConfigError, ModelConfig, parse_config
from stepahead.engine.model.v41.config_rules import RULES

from .model_documents import nano_document, tiny_document


def broken_yarn(**values: float) -> dict[str, Any]:
    scaling = parse_config(nano_document()).rope_scaling
    assert scaling is not None
    return {"rope_scaling": msgspec.structs.replace(scaling, **values)}


def broken_vision(**values: Any) -> dict[str, Any]:
    vision = parse_config(nano_document(vision=True)).vision
    assert vision is not None
    return {"vision": msgspec.structs.replace(vision, **values)}


# Every rule, the changes that break it and no earlier one, and the field it must blame.
BROKEN: list[tuple[str, dict[str, Any], str]] = [
    ("sizes_are_positive", {"hidden_size": 0}, "text_config.hidden_size"),
    ("sizes_are_positive", {"rms_norm_eps": float("inf")}, "text_config.rms_norm_eps"),
    ("sizes_are_positive", {"engram_n_heads": 0}, "text_config.engram_n_heads"),
    ("sizes_are_positive", {"dspark_markov_rank": 0}, "text_config.dspark_markov_rank"),
    ("sizes_are_positive", {"num_nextn_predict_layers": -1}, "text_config.num_nextn_predict_layers"),
    ("special_tokens_are_in_the_vocabulary", {"eos_token_id": 512}, "eos_token_id"),
    ("special_tokens_are_in_the_vocabulary", {"engram_pad_token_id": -1}, "text_config.engram_pad_token_id"),
    (
        "special_tokens_are_in_the_vocabulary",
        {"dspark_noise_token_id": 512},
        "text_config.dspark_noise_token_id",
    ),
    ("special_tokens_are_in_the_vocabulary", {"image_token_id": -1}, "image_token_id"),
    ("special_tokens_are_in_the_vocabulary", {"image_token_id": None}, "image_token_id"),
    ("tokenizer_policy_is_known", {"tokenizer_compatibility": "legacy"}, "tokenizer_compatibility"),
    ("rotary_dimensions_fit", {"qk_rope_head_dim": 15}, "text_config.qk_rope_head_dim"),
    ("rotary_dimensions_fit", {"qk_rope_head_dim": 34}, "text_config.qk_rope_head_dim"),
    ("yarn_is_ordered", broken_yarn(factor=0.5), "text_config.rope_scaling.factor"),
    ("yarn_is_ordered", broken_yarn(beta_slow=0), "text_config.rope_scaling.beta_slow"),
    ("yarn_is_ordered", broken_yarn(beta_fast=1), "text_config.rope_scaling.beta_fast"),
    (
        "yarn_is_ordered",
        broken_yarn(original_max_position_embeddings=0),
        "text_config.rope_scaling.original_max_position_embeddings",
    ),
    ("heads_divide_into_output_groups", {"o_groups": 3}, "text_config.o_groups"),
    ("quantized_dimensions_are_whole_groups", {"hidden_size": 250}, "text_config.hidden_size"),
    ("quantized_dimensions_are_whole_groups", {"engram_head_dim": 16}, "text_config.engram_head_dim"),
    (
        "quantized_dimensions_are_whole_groups",
        {"o_lora_rank": 24},
        "text_config.o_groups * o_lora_rank",
    ),
    (
        "confidence_temperatures_cover_the_block",
        {"dspark_confidence_temperatures": (1.0, 1.5)},
        "text_config.dspark_confidence_temperatures",
    ),
    (
        "confidence_temperatures_cover_the_block",
        {"dspark_confidence_temperatures": (1.0, 1.5, 0.0, 2.0, 1.0)},
        "text_config.dspark_confidence_temperatures",
    ),
    (
        "peak_calibration_covers_the_block",
        {"dspark_peak_calibration": ((1.0, 0.0),) * 4},
        "text_config.dspark_peak_calibration",
    ),
    (
        "peak_calibration_covers_the_block",
        {"dspark_peak_calibration": ((1.0, 0.0),) * 4 + ((-1.0, 0.0),)},
        "text_config.dspark_peak_calibration",
    ),
    ("ratios_cover_every_layer", {"compress_ratios": (0,) * 12}, "text_config.compress_ratios"),
    ("ratios_cover_every_layer", {"compress_ratios": (4,) * 13}, "text_config.compress_ratios"),
    ("draft_layers_never_share", {"compress_ratios": (1,) * 13}, "text_config.compress_ratios"),
    ("sources_are_compressed_layers", {"kv_source_layer_ids": (0, 2)}, "text_config.kv_source_layer_ids"),
    ("sources_are_compressed_layers", {"kv_source_layer_ids": (4, 2)}, "text_config.kv_source_layer_ids"),
    (
        "sources_are_compressed_layers",
        {"index_source_layer_ids": (2, 2)},
        "text_config.index_source_layer_ids",
    ),
    (
        "sources_are_compressed_layers",
        {"index_source_layer_ids": (11,)},
        "text_config.index_source_layer_ids",
    ),
    ("sources_form_a_chain", {"index_k_source_layer_ids": (2, 5)}, "text_config.index_k_source_layer_ids"),
    ("sources_form_a_chain", {"index_source_layer_ids": (2, 5, 7)}, "text_config.index_source_layer_ids"),
    (
        "layers_share_with_their_own_ratio",
        {"kv_source_layer_ids": (4, 5)},
        "text_config.kv_source_layer_ids",
    ),
    (
        "layers_share_with_their_own_ratio",
        {"compress_ratios": (0, 0, 2, 2, 2, 1, 1, 0, 1, 1, 0, 0, 0), "index_source_layer_ids": (2, 4, 5)},
        "text_config.kv_source_layer_ids",
    ),
    (
        "layers_share_with_their_own_ratio",
        {"compress_ratios": (0, 0, 2, 2, 2, 1, 1, 2, 1, 1, 0, 0, 0)},
        "text_config.kv_source_layer_ids",
    ),
    ("candidates_cover_a_top_k", {"candidate_source_layer_id": 6}, "text_config.candidate_source_layer_id"),
    ("candidates_cover_a_top_k", {"candidate_topk_blocks": 12}, "text_config.candidate_topk_blocks"),
    ("candidates_cover_a_top_k", {"candidate_topk_blocks": 0}, "text_config.candidate_topk_blocks"),
    ("candidates_cover_a_top_k", {"candidate_block_size": 17}, "text_config.candidate_block_size"),
    ("candidates_cover_a_top_k", {"index_topk": 65}, "text_config.candidate_topk_blocks"),
    (
        "candidate_consumers_count_like_the_source",
        {"candidate_source_layer_id": 4},
        "text_config.candidate_source_layer_id",
    ),
    ("experts_can_be_chosen", {"n_routed_experts": 1}, "text_config.n_routed_experts"),
    ("experts_can_be_chosen", {"num_experts_per_tok": 1}, "text_config.num_experts_per_tok"),
    ("experts_can_be_chosen", {"num_experts_per_tok": 17}, "text_config.num_experts_per_tok"),
    (
        "experts_can_be_chosen",
        {"dspark_num_experts_per_tok": 9},
        "text_config.dspark_num_experts_per_tok",
    ),
    ("engram_layers_are_producers", {"engram_layer_ids": (1, 5)}, "text_config.engram_layer_ids"),
    ("engram_layers_are_producers", {"engram_layer_ids": (1, 1)}, "text_config.engram_layer_ids"),
    (
        "engram_tables_have_the_declared_rows",
        {"engram_num_embeddings": (6126, 6333)},
        "text_config.engram_num_embeddings",
    ),
    (
        "engram_tables_have_the_declared_rows",
        {"engram_max_ngram_size": 1},
        "text_config.engram_max_ngram_size",
    ),
    (
        "engram_tables_have_the_declared_rows",
        {"engram_compressed_vocab_size": 513},
        "text_config.engram_compressed_vocab_size",
    ),
    ("drafts_read_trunk_features", {"dspark_block_size": 33}, "text_config.dspark_block_size"),
    (
        "drafts_read_trunk_features",
        {"dspark_target_layer_ids": (4, 7)},
        "text_config.dspark_target_layer_ids",
    ),
    ("drafts_read_trunk_features", {"dspark_target_layer_ids": (10,)}, "text_config.dspark_target_layer_ids"),
    ("drafts_read_trunk_features", {"dspark_target_layer_ids": ()}, "text_config.dspark_target_layer_ids"),
    ("vision_tower_is_whole", broken_vision(patch_size=0), "vision_config.patch_size"),
    ("vision_tower_is_whole", broken_vision(hidden_size=60), "vision_config.hidden_size"),
]


def first_broken_rule(config: ModelConfig) -> tuple[str, str]:
    for rule in RULES:
        try:
            rule(config)
        except ConfigError as error:
            return rule.__name__, error.field
    return "none", "none"


@pytest.mark.parametrize(("rule", "changes", "field"), BROKEN)
def test_each_rule_blames_the_field(rule: str, changes: dict[str, Any], field: str) -> None:
    config = msgspec.structs.replace(parse_config(nano_document(vision=True)), **changes)
    assert first_broken_rule(config) == (rule, field)


def test_keys_are_not_shared_across_the_consumer_boundary() -> None:
    """Only reachable with every layer of ratio 1: elsewhere the ratio rule speaks first."""
    config = msgspec.structs.replace(
        parse_config(tiny_document()), compress_ratios=(0, 1, 1), kv_source_layer_ids=(2,)
    )
    consumers = next(rule for rule in RULES if rule.__name__ == "consumers_start_at_a_source")
    with pytest.raises(ConfigError, match="a list with layer 1, the first of ratio 1"):
        consumers(config)


def test_every_rule_has_a_broken_example() -> None:
    named = {rule for rule, _, _ in BROKEN} | {"consumers_start_at_a_source"}
    assert named == {rule.__name__ for rule in RULES}
