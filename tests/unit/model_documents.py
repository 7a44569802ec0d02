"""Configurations the unit tests share: the published model, and a small one with every structural feature."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

_QUANTIZATION = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [32, 32],
    "scale_fmt": "ue8m0",
    "expert_dtype": "fp4",
}
_FIXED_TEXT = {
    "num_key_value_heads": 1,
    "hidden_act": "silu",
    "swiglu_limit": 10.0,
    "rms_norm_eps": 1e-20,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
    "rope_theta": 10000,
    "compress_rope_theta": 160000,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "engram_max_ngram_size": 4,
    "engram_pad_token_id": 2,
    "candidate_block_size": 8,
    "num_nextn_predict_layers": 3,
    "dspark_block_size": 5,
}
_TOP = {
    "architectures": ["DeepseekV41ForCausalLM"],
    "model_type": "deepseek_v41",
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "quantization_config": _QUANTIZATION,
}

_REAL = {
    **_TOP,
    "image_token_id": 129264,
    "text_config": {
        **_FIXED_TEXT,
        "vocab_size": 129280,
        "hidden_size": 5120,
        "num_hidden_layers": 40,
        "num_attention_heads": 64,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1280,
        "o_lora_rank": 1024,
        "o_groups": 8,
        "max_position_embeddings": 1048576,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 65536,
        },
        "sliding_window": 128,
        "compress_ratios": [0, 0] + [2] * 18 + [1] * 20 + [0, 0, 0],
        "kv_source_layer_ids": [2, 8, 14, 20],
        "index_source_layer_ids": [2, 8, 14, 20, 24, 28, 32, 36],
        "index_n_heads": 32,
        "index_head_dim": 128,
        "index_topk": 512,
        "candidate_source_layer_id": 20,
        "candidate_topk_blocks": 2048,
        "n_routed_experts": 384,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 2304,
        "engram_layer_ids": [1, 14],
        "engram_num_embeddings": [384006168, 384016682],
        "engram_vocab_size": 16000000,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_compressed_vocab_size": 99092,
        "dspark_noise_token_id": 128799,
        "dspark_target_layer_ids": [37, 38, 39],
        "dspark_markov_rank": 256,
        "dspark_n_routed_experts": 128,
        "dspark_num_experts_per_tok": 3,
    },
    "vision_config": {
        "model_type": "deepseek_v41_vision",
        "num_hidden_layers": 32,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 2816,
        "patch_size": 14,
        "rope_theta": 10000,
        "downsample_ratio": 3,
        "max_image_tokens": 1024,
        "min_pixels": 295936,
        "max_wh_ratio": None,
    },
}

_NANO = {
    **_TOP,
    "image_token_id": 260,
    "tokenizer_compatibility": "native",
    "text_config": {
        **_FIXED_TEXT,
        "vocab_size": 512,
        "hidden_size": 256,
        "num_hidden_layers": 10,
        "num_attention_heads": 8,
        "head_dim": 64,
        "qk_rope_head_dim": 16,
        "q_lora_rank": 64,
        "o_groups": 2,
        "o_lora_rank": 64,
        "max_position_embeddings": 1024,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 4,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": 256,
        },
        "sliding_window": 16,
        "compress_ratios": [0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0],
        "kv_source_layer_ids": [2, 4, 5],
        "index_source_layer_ids": [2, 4, 5, 7],
        "index_n_heads": 4,
        "index_head_dim": 32,
        "index_topk": 16,
        "candidate_source_layer_id": 5,
        "candidate_topk_blocks": 8,
        "n_routed_experts": 16,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "engram_layer_ids": [1, 4],
        "engram_num_embeddings": [6126, 6332],
        "engram_vocab_size": 1000,
        "engram_n_heads": 2,
        "engram_head_dim": 32,
        "engram_compressed_vocab_size": 0,
        "dspark_noise_token_id": 259,
        "dspark_target_layer_ids": [7, 8, 9],
        "dspark_markov_rank": 32,
        "dspark_n_routed_experts": 8,
        "dspark_num_experts_per_tok": 2,
    },
    "vision_config": {
        "model_type": "deepseek_v41_vision",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 2,
        "intermediate_size": 128,
        "patch_size": 14,
        "rope_theta": 10000,
        "downsample_ratio": 3,
        "max_image_tokens": 64,
        "min_pixels": 1764,
        "max_wh_ratio": None,
    },
}


def real_document() -> dict[str, Any]:
    """The published `config.json` (model_spec 1.1 to 1.4)."""
    return deepcopy(_REAL)


def nano_document(*, vision: bool = False) -> dict[str, Any]:
    """The nano `config.json` (model_spec 7.1), without vision unless asked for."""
    document = deepcopy(_NANO)
    if not vision:
        del document["vision_config"]
    return document


def tiny_document() -> dict[str, Any]:
    """Three layers (window, ratio 2, ratio 1), no memory, drafts or candidates: quick to write to disk."""
    document = nano_document()
    document["text_config"] |= {
        "vocab_size": 320,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "compress_ratios": [0, 2, 1],
        "kv_source_layer_ids": [1, 2],
        "index_source_layer_ids": [1, 2],
        "candidate_source_layer_id": None,
        "n_routed_experts": 2,
        "engram_layer_ids": [],
        "num_nextn_predict_layers": 0,
    }
    return document
