"""Six layers of DeepSeek-V4.1-Flash at their published width, with random weights made on the card.

The six are the six kinds there are: window; window with n-gram memory; source; reuse; the boundary source,
which publishes candidate blocks; reindex among those. Everything has its published size (model_spec 1.2) but
the n-gram tables: those of one layer take 98 GB, and a thousandth of their rows is still far more than any
cache holds. Weights are random codes with scales that keep activations near one.
"""

from __future__ import annotations

import math

import msgspec
import torch
from torch import Tensor

from stepahead.devices.kernels.quantized import QuantizedWeight, WeightFormat
from stepahead.engine.model.v41.config import ModelConfig, RopeScaling
from stepahead.engine.model.v41.config_rules import check_rules
from stepahead.engine.model.v41.engram_tables import engram_tables
from stepahead.engine.model.v41.roles import LayerRole, layer_roles
from stepahead.engine.model.v41.weights import (
    AttentionWeights,
    BlockWeights,
    CompressorWeights,
    EngramWeights,
    ExpertWeights,
    IndexerWeights,
    MixWeights,
    ModelWeights,
)

DEVICE = torch.device("cuda")
BF16 = torch.bfloat16
KINDS = ("window", "memory + window", "source", "reuse", "boundary source", "reindex")
ENGRAM_ROWS_PER_HEAD = 160_000
"""Published: 16,000,000."""


def slice_config(experts: int = 384, positions: int = 131_072 + 256) -> ModelConfig:
    config = ModelConfig(
        bos_token_id=0, eos_token_id=1, pad_token_id=2, vocab_size=129_280, hidden_size=5120,
        num_hidden_layers=6, max_position_embeddings=positions, rms_norm_eps=1e-20,
        num_attention_heads=64, head_dim=512, qk_rope_head_dim=64, q_lora_rank=1280, o_lora_rank=1024,
        o_groups=8, sliding_window=128, rope_theta=10_000.0, compress_rope_theta=160_000.0,
        rope_scaling=RopeScaling(
            factor=16, beta_fast=32, beta_slow=1, original_max_position_embeddings=65_536
        ),
        compress_ratios=(0, 0, 2, 2, 1, 1), kv_source_layer_ids=(2, 4), index_source_layer_ids=(2, 4, 5),
        index_k_source_layer_ids=(2, 4), index_n_heads=32, index_head_dim=128, index_topk=512,
        candidate_source_layer_id=4, candidate_topk_blocks=2048, candidate_block_size=8, hc_mult=4,
        hc_sinkhorn_iters=20, hc_eps=1e-6, n_routed_experts=experts, num_experts_per_tok=6,
        n_shared_experts=1, moe_intermediate_size=2304, routed_scaling_factor=1.5, swiglu_limit=10.0,
        engram_layer_ids=(1,), engram_max_ngram_size=4, engram_vocab_size=ENGRAM_ROWS_PER_HEAD,
        engram_n_heads=8, engram_head_dim=256, engram_pad_token_id=2,
    )  # fmt: skip
    rows = tuple(table.rows for table in engram_tables(config))
    config = msgspec.structs.replace(config, engram_num_embeddings=rows)
    check_rules(config)
    return config


def slice_weights(config: ModelConfig) -> ModelWeights:
    dim = config.hidden_size
    return ModelWeights(
        embed=torch.randn(config.vocab_size, dim, device=DEVICE, dtype=BF16),
        head=_plain(config.vocab_size, dim),
        norm=torch.ones(dim, device=DEVICE),
        blocks=tuple(_block(config, role) for role in layer_roles(config)),
        draft=None,
    )


def _plain(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=BF16) * shape[-1] ** -0.5


def _codes(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)


def _scales(spread: float, columns: int, *shape: int) -> Tensor:
    middle = 127 - round(math.log2(spread * math.sqrt(columns)))
    return torch.randint(middle - 1, middle + 2, shape, dtype=torch.uint8, device=DEVICE)


def _fp8(*shape: int) -> QuantizedWeight:
    *stack, rows, columns = shape
    codes = _codes(*shape)
    codes.masked_fill_((codes & 0x7F) == 0x7F, 0x7E)  # two codes are NaN
    scales = _scales(100.0, columns, *stack, rows // 32, columns // 32)
    return QuantizedWeight(codes.view(torch.float8_e4m3fn), scales, WeightFormat.FP8_BLOCK)


def _fp4(*shape: int) -> QuantizedWeight:
    *leading, columns = shape
    scales = _scales(3.0, columns, *leading, columns // 32)
    return QuantizedWeight(_codes(*leading, columns // 2), scales, WeightFormat.MXFP4)


def _mix(config: ModelConfig, layer_id: int) -> MixWeights:
    copies = config.hc_mult
    pre = torch.full((copies,), -3.0, device=DEVICE)
    pre[layer_id % copies] = 3.0
    comb = torch.full((copies, copies), -3.0, device=DEVICE).fill_diagonal_(3.0)
    base = torch.cat((pre, torch.zeros(copies, device=DEVICE), comb.flatten()))
    weight = torch.randn(config.mix_size, copies * config.hidden_size, device=DEVICE) * 0.02
    return MixWeights(weight, base, torch.full_like(base, 0.01))


def _block(config: ModelConfig, role: LayerRole) -> BlockWeights:
    ones = torch.ones(config.hidden_size, device=DEVICE)
    return BlockWeights(
        attention_norm=ones,
        attention_mix=_mix(config, role.layer_id),
        attention=_attention(config, role),
        ffn_norm=ones,
        ffn_mix=_mix(config, role.layer_id),
        ffn=_experts(config),
        engram=_engram(config, role) if role.has_engram else None,
    )


def _attention(config: ModelConfig, role: LayerRole) -> AttentionWeights:
    dim, head_dim, heads, groups = (
        config.hidden_size, config.head_dim, config.num_attention_heads, config.o_groups
    )  # fmt: skip
    compressor = indexer = None
    if role.is_kv_source:
        compressor = CompressorWeights(
            _plain(head_dim * (2 if role.ratio > 1 else 1), dim), torch.ones(head_dim, device=DEVICE)
        )
    if role.is_index_source:
        width, owns = config.index_head_dim, role.is_index_k_source
        indexer = IndexerWeights(
            query=_fp8(config.index_n_heads * width, config.q_lora_rank),
            head_weights=_plain(config.index_n_heads, dim),
            key=_plain(width, head_dim) if owns else None,
            key_norm=torch.ones(width, device=DEVICE) if owns else None,
        )
    return AttentionWeights(
        query_a_kv=_fp8(config.q_lora_rank + head_dim, dim),
        query_norm=torch.ones(config.q_lora_rank, device=DEVICE),
        query_b=_fp8(heads * head_dim, config.q_lora_rank),
        kv_norm=torch.ones(head_dim, device=DEVICE),
        sink=torch.randn(heads, device=DEVICE) * 0.5,
        output_a=_fp8(groups, config.o_lora_rank, heads // groups * head_dim),
        output_b=_fp8(dim, groups * config.o_lora_rank),
        compressor=compressor,
        indexer=indexer,
    )


def _experts(config: ModelConfig) -> ExpertWeights:
    count, dim, inner = config.n_routed_experts, config.hidden_size, config.moe_intermediate_size
    bias = torch.randn(count, device=DEVICE) * 0.02
    return ExpertWeights(
        gate=_plain(count, dim),
        text_bias=bias,
        image_bias=bias,
        gate_up=_fp4(count, 2 * inner, dim),
        down=_fp4(count, dim, inner),
        shared_gate_up=_fp8(2 * inner, dim),
        shared_down=_fp8(dim, inner),
        top_k=config.num_experts_per_tok,
    )


def _engram(config: ModelConfig, role: LayerRole) -> EngramWeights:
    rows = next(table.rows for table in engram_tables(config) if table.layer_id == role.layer_id)
    copies, dim = config.hc_mult, config.hidden_size
    return EngramWeights(
        table=torch.randn(rows, config.engram_head_dim, device=DEVICE, dtype=BF16),
        projection=_fp8((copies + 1) * dim, config.engram_rows_per_token * config.engram_head_dim),
        query_key=torch.ones(copies, dim, device=DEVICE),
    )
