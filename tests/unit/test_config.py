"""Configurations: what is read, what defaults, and one clear error for everything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepahead.engine.model.v41.config import (
    ConfigError,
    load_config,
    parse_config,
    to_document,
)

from .model_documents import nano_document, real_document, tiny_document

DOCUMENTS = {
    "real": real_document(),
    "nano": nano_document(),
    "nano with vision": nano_document(vision=True),
    "tiny": tiny_document(),
}


def changed(section: str | None = "text_config", **values: Any) -> dict[str, Any]:
    document = nano_document(vision=True)
    (document[section] if section else document).update(values)
    return document


def without(name: str, section: str | None = "text_config") -> dict[str, Any]:
    document = nano_document(vision=True)
    del (document[section] if section else document)[name]
    return document


def refusal(document: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_config(document)
    return caught.value


@pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)
def test_a_configuration_survives_the_trip_through_json(document: dict[str, Any]) -> None:
    config = parse_config(document)
    assert parse_config(json.loads(json.dumps(to_document(config)))) == config


def test_published_values_are_read() -> None:
    config = parse_config(real_document())
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers) == (129280, 5120, 40)
    assert config.rope_scaling is not None
    assert config.rope_scaling.original_max_position_embeddings == 65536
    assert config.rms_norm_eps == 1e-20
    assert config.n_prefill_layer == 20
    assert config.mix_size == 24
    assert config.engram_rows_per_token == 24
    assert config.vision is not None
    assert config.vision.head_dim == 64


def test_absent_optional_fields_have_their_defaults() -> None:
    document = nano_document()
    del document["tokenizer_compatibility"]
    del document["text_config"]["attention_dropout"]
    del document["text_config"]["rope_scaling"]
    config = parse_config(document)
    assert config.tokenizer_compatibility == "release"
    assert config.index_k_source_layer_ids == config.kv_source_layer_ids
    assert config.use_fp4_sparse_kv is True
    assert config.rope_scaling is None
    assert config.vision is None


@pytest.mark.parametrize("empty", [None, [], "absent"])
def test_a_model_without_memory(empty: object) -> None:
    document = nano_document()
    document["text_config"]["engram_layer_ids"] = empty
    if empty == "absent":
        del document["text_config"]["engram_layer_ids"]
    config = parse_config(document)
    assert config.engram_layer_ids == config.engram_num_embeddings == ()


@pytest.mark.parametrize("empty", [None, 0, "absent"])
def test_a_model_without_drafts(empty: object) -> None:
    document = nano_document()
    text = document["text_config"]
    text["compress_ratios"] = text["compress_ratios"][:10]
    text["num_nextn_predict_layers"] = empty
    if empty == "absent":
        del text["num_nextn_predict_layers"]
    config = parse_config(document)
    assert config.num_nextn_predict_layers == config.dspark_block_size == 0
    assert config.dspark_target_layer_ids == ()


@pytest.mark.parametrize("absent", [True, False])
def test_a_model_without_candidates(absent: bool) -> None:
    document = nano_document()
    document["text_config"]["candidate_source_layer_id"] = None
    if absent:
        for name in ("candidate_source_layer_id", "candidate_topk_blocks", "candidate_block_size"):
            del document["text_config"][name]
    assert parse_config(document).candidate_source_layer_id is None


def test_candidates_may_start_at_layer_zero() -> None:
    """Id 0 is a layer, not "off"."""
    document = tiny_document()
    document["text_config"] |= {
        "compress_ratios": [1, 1, 1],
        "kv_source_layer_ids": [0],
        "index_source_layer_ids": [0, 2],
        "candidate_source_layer_id": 0,
    }
    assert parse_config(document).candidate_source_layer_id == 0


def test_unknown_fields_are_ignored() -> None:
    assert parse_config(changed(transformers_version="9.9")) == parse_config(nano_document(vision=True))


REQUIRED = [
    *((None, name) for name in ("architectures", "model_type", "dtype", "bos_token_id", "text_config")),
    (None, "quantization_config"),
    ("quantization_config", "scale_fmt"),
    ("vision_config", "patch_size"),
    *(
        ("text_config", name)
        for name in ("vocab_size", "hidden_act", "compress_ratios", "kv_source_layer_ids", "hc_eps")
    ),
]


@pytest.mark.parametrize(("section", "name"), REQUIRED)
def test_a_missing_field_is_named(section: str | None, name: str) -> None:
    error = refusal(without(name, section))
    assert error.field == (f"{section}.{name}" if section else name)
    assert f"{error.field} is missing; allowed: " in str(error)


WRONG_VALUES: list[tuple[str | None, str, Any, str]] = [
    (None, "architectures", ["LlamaForCausalLM"], "only ['DeepseekV41ForCausalLM']"),
    (None, "architectures", "DeepseekV41ForCausalLM", "only ['DeepseekV41ForCausalLM']"),
    (None, "model_type", "deepseek_v4", "only 'deepseek_v41'"),
    (None, "dtype", "float16", "only 'bfloat16'"),
    (None, "bos_token_id", "0", "an integer"),
    (None, "image_token_id", "x", "an integer or null"),
    (None, "text_config", [], "an object"),
    (None, "vision_config", 3, "an object"),
    ("quantization_config", "quant_method", "awq", "only 'fp8'"),
    ("quantization_config", "activation_scheme", "static", "only 'dynamic'"),
    ("quantization_config", "weight_block_size", [128, 128], "only [32, 32]"),
    ("quantization_config", "scale_fmt", "fp32", "only 'ue8m0'"),
    ("quantization_config", "expert_dtype", "fp8", "only 'fp4'"),
    ("text_config", "num_key_value_heads", 8, "only 1"),
    ("text_config", "num_key_value_heads", True, "only 1"),
    ("text_config", "hidden_act", "gelu", "only 'silu'"),
    ("text_config", "attention_bias", True, "only False"),
    ("text_config", "attention_dropout", 0.1, "only 0.0"),
    ("text_config", "tie_word_embeddings", True, "only False"),
    ("text_config", "scoring_func", "sigmoid", "only 'sqrtsoftplus'"),
    ("text_config", "topk_method", "greedy", "only 'noaux_tc'"),
    ("text_config", "norm_topk_prob", False, "only True"),
    ("text_config", "dspark_target_attn_input", False, "only True"),
    ("text_config", "hc_shifted", False, "true or absent: false is the V4 form"),
    ("text_config", "vocab_size", 1.5, "an integer"),
    ("text_config", "vocab_size", None, "an integer"),
    ("text_config", "hc_eps", "tiny", "a number"),
    ("text_config", "compress_ratios", 2, "a list of integers"),
    ("text_config", "compress_ratios", [0, "1"], "a list of integers"),
    ("text_config", "use_fp4_sparse_kv", 1, "true or false"),
    ("text_config", "rope_scaling", "yarn", "an object"),
    ("vision_config", "max_wh_ratio", "wide", "a number or null"),
]


@pytest.mark.parametrize(("section", "name", "value", "allowed"), WRONG_VALUES)
def test_a_wrong_value_is_named_with_what_is_allowed(
    section: str | None, name: str, value: Any, allowed: str
) -> None:
    error = refusal(changed(section, **{name: value}))
    assert error.field == (f"{section}.{name}" if section else name)
    assert error.value == value
    assert error.allowed.startswith(allowed)
    assert str(error) == f"{error.field} is {value!r}; allowed: {error.allowed}"


def test_only_yarn_scales_positions() -> None:
    document = nano_document()
    document["text_config"]["rope_scaling"]["rope_type"] = "linear"
    error = refusal(document)
    assert (error.field, error.allowed) == ("text_config.rope_scaling.rope_type", "only 'yarn'")


def test_parse_config_checks_the_rules() -> None:
    assert refusal(changed(candidate_topk_blocks=12)).field == "text_config.candidate_topk_blocks"


def test_load_config_reads_a_file_or_a_directory(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(nano_document()))
    expected = parse_config(nano_document())
    assert load_config(tmp_path) == expected
    assert load_config(str(tmp_path / "config.json")) == expected


def test_load_config_names_a_file_that_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json is .*; allowed: a JSON document"):
        load_config(tmp_path)


def test_load_config_names_a_file_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"config\.json is missing; allowed: a config\.json or the directory"
    ):
        load_config(tmp_path)


@pytest.mark.parametrize("document", [[], "text", None])
def test_a_document_must_be_an_object(document: Any) -> None:
    assert refusal(document).field == "config.json"


def test_the_calibration_of_drafts_is_optional_and_survives() -> None:
    plain = parse_config(nano_document())
    assert plain.dspark_confidence_temperatures == ()
    assert "dspark_confidence_temperatures" not in to_document(plain)["text_config"]
    fitted = parse_config(changed("text_config", dspark_confidence_temperatures=[1, 1.5, 2, 2.5, 3]))
    assert fitted.dspark_confidence_temperatures == (1.0, 1.5, 2.0, 2.5, 3.0)
    assert parse_config(json.loads(json.dumps(to_document(fitted)))) == fitted
    pairs = [[0.5, -1], [1, 0], [1, 0.5], [2, 1], [1, 1.5]]
    peaks = parse_config(changed("text_config", dspark_peak_calibration=pairs))
    assert peaks.dspark_peak_calibration == tuple((float(a), float(b)) for a, b in pairs)
    assert parse_config(json.loads(json.dumps(to_document(peaks)))) == peaks
    assert "dspark_peak_calibration" not in to_document(plain)["text_config"]
    assert (
        refusal(changed("text_config", dspark_peak_calibration=[1, 2])).allowed
        == "a list of pairs of numbers"
    )
    assert (
        refusal(changed("text_config", dspark_confidence_temperatures="hot")).allowed == "a list of numbers"
    )
