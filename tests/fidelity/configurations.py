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

DATA = Path(__file__).parent / "data"
MICRO = DATA / "micro"


def from_published(document: dict[str, Any]) -> ModelConfig:
    """The configuration struct of a Hugging Face `config.json` document."""
    fields = {**document, **document["text_config"]}
    fields.setdefault("index_k_source_layer_ids", fields["kv_source_layer_ids"])
    known = {name: value for name, value in fields.items() if name in ModelConfig.__struct_fields__}
    return msgspec.convert(known, ModelConfig)


def nano_config() -> ModelConfig:
    """The example configuration of model_spec 7.1, for which the specification lists numbers."""
    return from_published(json.loads((DATA / "nano_spec" / "config.json").read_text()))


def micro_config() -> ModelConfig:
    """The model of the golden vectors (data/micro/README.md)."""
    return from_published(json.loads((MICRO / "checkpoint" / "config.json").read_text()))


def small_config(**changes: Any) -> ModelConfig:
    """A model with every structural feature and tiny matrices, for tests that build random weights.

    The layer plan is that of model_spec 7.1. The window, the top-k and the candidate blocks are so short that
    all of them bite within 40 tokens. `changes` replaces fields by name, unchecked.
    """
    fields: dict[str, Any] = {
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "image_token_id": 60,
        "tokenizer_compatibility": "native",
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 10, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-20,
        "num_attention_heads": 4, "head_dim": 32, "qk_rope_head_dim": 8, "q_lora_rank": 32, "o_lora_rank": 16,
        "o_groups": 2, "sliding_window": 8, "rope_theta": 10000.0, "compress_rope_theta": 160000.0,
        "rope_scaling": {
            "factor": 4, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 256,
        },
        "compress_ratios": (0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0),
        "kv_source_layer_ids": (2, 4, 5), "index_source_layer_ids": (2, 4, 5, 7),
        "index_k_source_layer_ids": (2, 4, 5),
        "index_n_heads": 4, "index_head_dim": 32, "index_topk": 8,
        "candidate_source_layer_id": 5, "candidate_topk_blocks": 8, "candidate_block_size": 2,
        "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6,
        "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 32,
        "routed_scaling_factor": 1.5, "swiglu_limit": 10.0,
        "engram_layer_ids": (1, 4), "engram_num_embeddings": (384, 552), "engram_max_ngram_size": 4,
        "engram_vocab_size": 50, "engram_n_heads": 2, "engram_head_dim": 32, "engram_pad_token_id": 2,
        "num_nextn_predict_layers": 3, "dspark_block_size": 5, "dspark_noise_token_id": 59,
        "dspark_target_layer_ids": (7, 8, 9), "dspark_markov_rank": 8, "dspark_n_routed_experts": 4,
        "dspark_num_experts_per_tok": 2,
    }  # fmt: skip
    return msgspec.convert({**fields, **changes}, ModelConfig)


def published_config() -> ModelConfig:
    """The dimensions of the published model (model_spec 1.2)."""
    return small_config(
        vocab_size=129280, hidden_size=5120, num_hidden_layers=40, max_position_embeddings=1048576,
        num_attention_heads=64, head_dim=512, qk_rope_head_dim=64, q_lora_rank=1280, o_lora_rank=1024,
        o_groups=8, sliding_window=128, compress_ratios=(0, 0, *[2] * 18, *[1] * 20, 0, 0, 0),
        kv_source_layer_ids=(2, 8, 14, 20), index_source_layer_ids=(2, 8, 14, 20, 24, 28, 32, 36),
        index_k_source_layer_ids=(2, 8, 14, 20), index_n_heads=32, index_head_dim=128, index_topk=512,
        candidate_source_layer_id=20, candidate_topk_blocks=2048, candidate_block_size=8,
        n_routed_experts=384, num_experts_per_tok=6, moe_intermediate_size=2304,
        engram_layer_ids=(1, 14), engram_num_embeddings=(384006168, 384016682), engram_vocab_size=16000000,
        engram_n_heads=8, engram_head_dim=256, engram_compressed_vocab_size=99092,
        dspark_noise_token_id=128799, dspark_target_layer_ids=(37, 38, 39), dspark_markov_rank=256,
        dspark_n_routed_experts=128, dspark_num_experts_per_tok=3,
    )  # fmt: skip
