"""The nouns of a DeepSeek-V4.1 configuration: frozen structs, and the error that refuses a document.

A Hugging Face `config.json` nests the language model under `text_config` and the vision tower under
`vision_config`. `ModelConfig` flattens the language model (its fields keep their published names, so that a
reader of the publisher's files finds them) and keeps the vision tower as `vision`. Nothing else in the
project reads the JSON: a field that is not here is not used.

Source of every meaning: model_spec sections 1.1 to 1.6.
"""

from __future__ import annotations

import msgspec

from ...errors import StepaheadError


class ConfigError(StepaheadError, ValueError):
    """A model's configuration cannot be used: a field is missing or has a value the model does not allow.

    `field`: its path in `config.json`; `value`: what was found (None when the field is missing);
    `allowed`: a phrase that says what would have been accepted.
    """

    def __init__(self, field: str, value: object, allowed: str, *, missing: bool = False) -> None:
        self.field = field
        self.value = value
        self.allowed = allowed
        found = "is missing" if missing else f"is {value!r}"
        super().__init__(f"{field} {found}; allowed: {allowed}")


TEXT = "text_config."  # where the language model's fields lie in a document


def require(holds: bool, field: str, value: object, allowed: str) -> None:
    """Raise `ConfigError` unless `holds`."""
    if not holds:
        raise ConfigError(field, value, allowed)


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """YaRN parameters, applied to layers with compressed keys only (model_spec 2.3)."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position_embeddings: int


class VisionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Dimensions of the vision encoder and of its projector (model_spec 1.4, 6)."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    patch_size: int
    rope_theta: float
    downsample_ratio: int
    max_image_tokens: int
    min_pixels: int
    max_wh_ratio: float | None = None

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One DeepSeek-V4.1 model. Build it with `parse_config` or `load_config`, which check every rule."""

    # Token ids with a meaning.
    bos_token_id: int
    eos_token_id: int
    pad_token_id: int
    image_token_id: int | None = None
    tokenizer_compatibility: str = "release"

    # The trunk.
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    max_position_embeddings: int
    rms_norm_eps: float

    # Attention: one shared key-value vector per position (model_spec 2.4, 2.5).
    num_attention_heads: int
    head_dim: int
    qk_rope_head_dim: int
    q_lora_rank: int
    o_lora_rank: int
    o_groups: int
    sliding_window: int
    rope_theta: float
    compress_rope_theta: float
    rope_scaling: RopeScaling | None

    # Compressed keys and their indexer (2.6, 2.7).
    compress_ratios: tuple[int, ...]
    kv_source_layer_ids: tuple[int, ...]
    index_source_layer_ids: tuple[int, ...]
    index_k_source_layer_ids: tuple[int, ...]
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    candidate_source_layer_id: int | None
    candidate_topk_blocks: int
    candidate_block_size: int

    # Hyper-connections (2.2).
    hc_mult: int
    hc_sinkhorn_iters: int
    hc_eps: float

    # Mixture of experts (2.9).
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    moe_intermediate_size: int
    routed_scaling_factor: float
    swiglu_limit: float

    # Engram memory (2.11); empty ids mean no memory.
    engram_layer_ids: tuple[int, ...] = ()
    engram_num_embeddings: tuple[int, ...] = ()
    engram_max_ngram_size: int = 4
    engram_vocab_size: int = 0
    engram_n_heads: int = 0
    engram_head_dim: int = 0
    engram_pad_token_id: int = 0
    engram_compressed_vocab_size: int = 0

    # The DSpark draft block (3); zero layers mean no drafts.
    num_nextn_predict_layers: int = 0
    dspark_block_size: int = 0
    dspark_noise_token_id: int = 0
    dspark_target_layer_ids: tuple[int, ...] = ()
    dspark_markov_rank: int = 0
    dspark_n_routed_experts: int = 0
    dspark_num_experts_per_tok: int = 0
    dspark_confidence_temperatures: tuple[float, ...] = ()  # one a place; ours, empty means 1 everywhere
    dspark_peak_calibration: tuple[tuple[float, float], ...] = ()  # ours, see `DraftPass.acceptance`

    use_fp4_sparse_kv: bool = True
    vision: VisionConfig | None = None

    @property
    def n_prefill_layer(self) -> int | None:
        """First consumer layer: the first whose ratio is 1 (1.5); None when the model has no such layer."""
        return next((i for i, r in enumerate(self.compress_ratios[: self.num_hidden_layers]) if r == 1), None)

    @property
    def mix_size(self) -> int:
        """Rows of a hyper-connection mixing matrix: pre, post and comb coefficients of `hc_mult` copies."""
        return (2 + self.hc_mult) * self.hc_mult

    @property
    def engram_rows_per_token(self) -> int:
        return (self.engram_max_ngram_size - 1) * self.engram_n_heads
