"""The configurations that the fidelity tests run on.

`micro_config` reads the published-style JSON beside the golden vectors with a few lines of its own, so that
the oracle does not depend on the project's parser.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from stepahead.engine.model.v41.config import ModelConfig

MICRO = Path(__file__).parent / "data" / "micro"


def from_published(document: dict[str, Any]) -> ModelConfig:
    """The configuration struct of a Hugging Face `config.json` document."""
    fields = {**document, **document["text_config"]}
    fields.setdefault("index_k_source_layer_ids", fields["kv_source_layer_ids"])
    known = {name: value for name, value in fields.items() if name in ModelConfig.__struct_fields__}
    return msgspec.convert(known, ModelConfig)


def micro_config() -> ModelConfig:
    """The model of the golden vectors (data/micro/README.md)."""
    return from_published(json.loads((MICRO / "checkpoint" / "config.json").read_text()))
