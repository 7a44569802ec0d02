"""From `config.json` to a checked `ModelConfig` and back.

Three kinds of fields exist. Some are free and end up in `ModelConfig`; some have one legal value (the
formulas of this engine are written for it), are checked and forgotten; the rest of a document is not ours and
is ignored. The alternative, accepting any document and failing in a matrix product, names no field.

Source: model_spec 1.1 to 1.6. `ModelConfig` and its rules live in `config_types` and `config_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import FieldInfo

from .config_rules import check_rules
from .config_types import ConfigError, ModelConfig, RopeScaling, VisionConfig

__all__ = [
    "ConfigError",
    "ModelConfig",
    "RopeScaling",
    "VisionConfig",
    "load_config",
    "parse_config",
    "to_document",
]

_ARCHITECTURE = "DeepseekV41ForCausalLM"
_TOP_LEVEL = ("bos_token_id", "eos_token_id", "pad_token_id", "image_token_id", "tokenizer_compatibility")

_FIXED_TOP: dict[str, Any] = {
    "architectures": [_ARCHITECTURE],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
}
_FIXED_TEXT: dict[str, Any] = {
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
}
_FIXED_TEXT_OPTIONAL: dict[str, Any] = {"attention_dropout": 0.0, "dspark_target_attn_input": True}
_FIXED_QUANTIZATION: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}

# Published fields that may be absent although ModelConfig has no default for them.
_ABSENT: dict[str, Any] = {
    "rope_scaling": None,
    "candidate_source_layer_id": None,
    "candidate_topk_blocks": 0,
    "candidate_block_size": 0,
}

_KIND_PHRASES: dict[Any, str] = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "a string",
    int | None: "an integer or null",
    float | None: "a number or null",
    tuple[int, ...]: "a list of integers",
    tuple[float, ...]: "a list of numbers",
    tuple[tuple[float, float], ...]: "a list of pairs of numbers",
    RopeScaling | None: "an object or null",
}


def load_config(path: str | Path) -> ModelConfig:
    """Read a `config.json`, or the one inside a checkpoint directory.

    Raises `ConfigError` without such a file, and for a document this engine cannot run.
    """
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    if not file.is_file():
        raise ConfigError(str(file), None, "a config.json or the directory that holds it", missing=True)
    try:
        document = msgspec.json.decode(file.read_bytes())
    except msgspec.DecodeError as error:
        raise ConfigError(str(file), str(error), "a JSON document") from error
    return parse_config(document)


def parse_config(document: Mapping[str, Any]) -> ModelConfig:
    """A checked configuration from a Hugging Face `config.json`; `ConfigError` names the first problem."""
    top = _section(document, "")
    _check_fixed(top, "", _FIXED_TOP)
    quantization = _section(_required(top, "", "quantization_config"), "quantization_config.")
    _check_fixed(quantization, "quantization_config.", _FIXED_QUANTIZATION)
    text = dict(_section(_required(top, "", "text_config"), "text_config."))
    _check_fixed(text, "text_config.", _FIXED_TEXT)
    _check_fixed(text, "text_config.", _FIXED_TEXT_OPTIONAL, optional=True)
    _check_shifted(text)
    _fill_absent(text)
    values = {}
    for field in msgspec.structs.fields(ModelConfig):
        if field.name == "vision":
            continue
        prefix, section = ("", top) if field.name in _TOP_LEVEL else ("text_config.", text)
        values[field.name] = _value(section, prefix, field)
    values["vision"] = _vision(top)
    config = ModelConfig(**values)
    check_rules(config)
    return config


def to_document(config: ModelConfig) -> dict[str, Any]:
    """The Hugging Face `config.json` of a configuration, which `parse_config` turns back into it."""
    flat = msgspec.to_builtins(config)
    vision = flat.pop("vision")
    top = {name: flat.pop(name) for name in _TOP_LEVEL}
    scaling = flat.pop("rope_scaling")
    for name in ("dspark_confidence_temperatures", "dspark_peak_calibration"):
        if not flat[name]:
            del flat[name]  # no published field: written only where it says something
    text = {
        "model_type": "deepseek_v41_text",
        **flat,
        **_FIXED_TEXT,
        **_FIXED_TEXT_OPTIONAL,
        "hc_shifted": True,
    }
    text["rope_scaling"] = None if scaling is None else {"rope_type": "yarn", **scaling}
    document = {**_FIXED_TOP, **top, "quantization_config": _FIXED_QUANTIZATION, "text_config": text}
    if vision is not None:
        document["vision_config"] = {"model_type": "deepseek_v41_vision", **vision}
    return document


def _section(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(path.rstrip(".") or "config.json", value, "an object")
    return value


def _required(section: Mapping[str, Any], prefix: str, name: str, allowed: str = "an object") -> Any:
    if name not in section:
        raise ConfigError(prefix + name, None, allowed, missing=True)
    return section[name]


def _check_fixed(
    section: Mapping[str, Any], prefix: str, fixed: dict[str, Any], optional: bool = False
) -> None:
    for name, expected in fixed.items():
        if optional and name not in section:
            continue
        value = _required(section, prefix, name, f"only {expected!r}")
        # 1 == True in Python, but a flag that is a number is a mistake worth showing.
        if value != expected or isinstance(value, bool) != isinstance(expected, bool):
            raise ConfigError(prefix + name, value, f"only {expected!r}")


def _check_shifted(text: Mapping[str, Any]) -> None:
    shifted = text.get("hc_shifted", True)
    if shifted is not True:
        allowed = (
            "true or absent: false is the V4 form of hyper-connections, which V4.1 checkpoints do not use"
        )
        raise ConfigError("text_config.hc_shifted", shifted, allowed)


def _fill_absent(text: dict[str, Any]) -> None:
    """Drop the fields of parts that are switched off, and give absent fields their defaults."""
    switches = {
        "candidate_": "candidate_source_layer_id",
        "engram_": "engram_layer_ids",
        "dspark_": "num_nextn_predict_layers",
    }
    for prefix, switch in switches.items():
        # Layer id 0 is a legal candidate source; an empty list and zero layers mean "off".
        off = text.get(switch) is None or (text[switch] in ([], 0) and prefix != "candidate_")
        for name in [name for name in text if off and name.startswith(prefix)]:
            del text[name]
    for name, default in _ABSENT.items():
        text.setdefault(name, default)
    if text.get("index_k_source_layer_ids") is None and "kv_source_layer_ids" in text:
        text["index_k_source_layer_ids"] = text["kv_source_layer_ids"]


def _value(section: Mapping[str, Any], prefix: str, field: FieldInfo) -> Any:
    if section.get(field.name) is None and not field.required:
        return field.default
    allowed = _KIND_PHRASES[field.type]
    value = _required(section, prefix, field.name, allowed)
    if field.name == "rope_scaling" and value is not None:
        return _rope_scaling(_section(value, "text_config.rope_scaling."))
    return _convert(value, field.type, prefix + field.name)


def _rope_scaling(section: Mapping[str, Any]) -> RopeScaling:
    prefix = "text_config.rope_scaling."
    _check_fixed(section, prefix, {"rope_type": "yarn"})
    fields = msgspec.structs.fields(RopeScaling)
    return RopeScaling(**{field.name: _value(section, prefix, field) for field in fields})


def _vision(top: Mapping[str, Any]) -> VisionConfig | None:
    if top.get("vision_config") is None:
        return None
    section = _section(top["vision_config"], "vision_config.")
    fields = msgspec.structs.fields(VisionConfig)
    return VisionConfig(**{field.name: _value(section, "vision_config.", field) for field in fields})


def _convert(value: object, kind: Any, path: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(path, value, _KIND_PHRASES[kind]) from error
