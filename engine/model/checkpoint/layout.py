"""Every tensor of a published checkpoint: its name, its logical shape, and how it is stored.

The layout is a function of the configuration alone, so the reader, the writer, the dummy generator and the
tests agree on one list. The rejected alternative, asking the modules of the model for their parameters, ties
the file format to how the arithmetic happens to stack its weights.

Source: model_spec 4.2 to 4.5.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..v41.config import ModelConfig
from ..v41.engram_tables import engram_tables
from ..v41.roles import LayerRole, layer_roles
from .storage import StorageKind, TensorSpec

_PATCH_CHANNELS = 3


def tensor_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """All weights of a model by checkpoint name, in file order, without a `model.` prefix.

    The three image vectors are optional in a model without a vision tower.
    """
    specs = dict(_global_specs(config))
    for role in layer_roles(config):
        prefix = (
            f"mtp.{role.layer_id - config.num_hidden_layers}."
            if role.is_draft
            else f"layers.{role.layer_id}."
        )
        layer = {**dict(_block_specs(config, role)), **dict(_conditional_specs(config, role))}
        specs.update((prefix + name, spec) for name, spec in layer.items())
    specs.update(_draft_head_specs(config))
    specs.update(_vision_specs(config))
    return specs


Named = Iterator[tuple[str, TensorSpec]]


def _bf16(*shape: int) -> TensorSpec:
    return TensorSpec(shape, StorageKind.BF16)


def _fp32(*shape: int) -> TensorSpec:
    return TensorSpec(shape, StorageKind.FP32)


def _fp8(rows: int, columns: int) -> TensorSpec:
    return TensorSpec((rows, columns), StorageKind.FP8_BLOCK)


def _fp4(rows: int, columns: int) -> TensorSpec:
    return TensorSpec((rows, columns), StorageKind.MXFP4)


def _global_specs(config: ModelConfig) -> Named:
    vocabulary, dim = config.vocab_size, config.hidden_size
    yield "embed.weight", _bf16(vocabulary, dim)
    yield "head.weight", _bf16(vocabulary, dim)
    yield "norm.weight", _bf16(dim)
    for name in ("image_start", "image_end", "image_newline"):
        yield name, TensorSpec((dim,), StorageKind.ANY_FLOAT, optional=config.vision is None)


def _block_specs(config: ModelConfig, role: LayerRole) -> Named:
    yield from _attention_specs(config)
    yield from _mix_specs(config)
    yield from _expert_specs(
        config, config.dspark_n_routed_experts if role.is_draft else config.n_routed_experts
    )


def _attention_specs(config: ModelConfig) -> Named:
    dim, head_dim, heads, groups = (
        config.hidden_size,
        config.head_dim,
        config.num_attention_heads,
        config.o_groups,
    )
    query_rank, output_rank = config.q_lora_rank, config.o_lora_rank
    yield "attn.wq_a.weight", _fp8(query_rank, dim)
    yield "attn.wq_b.weight", _fp8(heads * head_dim, query_rank)
    yield "attn.wkv.weight", _fp8(head_dim, dim)
    yield "attn.wo_a.weight", _fp8(groups * output_rank, heads * head_dim // groups)
    yield "attn.wo_b.weight", _fp8(dim, groups * output_rank)
    yield "attn.q_norm.weight", _bf16(query_rank)
    yield "attn.kv_norm.weight", _bf16(head_dim)
    yield "attn.attn_sink", _fp32(heads)
    yield "attn_norm.weight", _bf16(dim)
    yield "ffn_norm.weight", _bf16(dim)


def _mix_specs(config: ModelConfig) -> Named:
    for sublayer in ("attn", "ffn"):
        yield f"hc_{sublayer}_fn", _fp32(config.mix_size, config.hc_mult * config.hidden_size)
        yield f"hc_{sublayer}_base", _fp32(config.mix_size)
        yield f"hc_{sublayer}_scale", _fp32(3)


def _expert_specs(config: ModelConfig, experts: int) -> Named:
    dim, width = config.hidden_size, config.moe_intermediate_size
    shared_width = width * config.n_shared_experts
    yield "ffn.gate.weight", _bf16(experts, dim)
    yield "ffn.gate.bias", _fp32(experts)
    yield "ffn.gate.bias_vl", _fp32(experts)
    yield "ffn.shared_experts.w1.weight", _fp8(shared_width, dim)
    yield "ffn.shared_experts.w2.weight", _fp8(dim, shared_width)
    yield "ffn.shared_experts.w3.weight", _fp8(shared_width, dim)
    for expert in range(experts):
        yield f"ffn.experts.{expert}.w1.weight", _fp4(width, dim)
        yield f"ffn.experts.{expert}.w2.weight", _fp4(dim, width)
        yield f"ffn.experts.{expert}.w3.weight", _fp4(width, dim)


def _conditional_specs(config: ModelConfig, role: LayerRole) -> Named:
    dim, head_dim = config.hidden_size, config.head_dim
    if role.is_kv_source:
        yield "attn.compressor.wkv.weight", _bf16(head_dim, dim)
        if role.ratio > 1:
            yield "attn.compressor.wgate.weight", _bf16(head_dim, dim)
        yield "attn.compressor.norm.weight", _bf16(head_dim)
    if role.is_index_source:
        heads, index_dim = config.index_n_heads, config.index_head_dim
        yield "attn.indexer.wq_b.weight", _fp8(heads * index_dim, config.q_lora_rank)
        yield "attn.indexer.weights_proj.weight", _bf16(heads, dim)
    if role.is_index_k_source:
        yield "attn.indexer.wk.weight", _bf16(config.index_head_dim, head_dim)
        yield "attn.indexer.k_norm.weight", _bf16(config.index_head_dim)
    if role.has_engram:
        yield from _engram_specs(config, role.layer_id)


def _engram_specs(config: ModelConfig, layer_id: int) -> Named:
    dim, copies, columns = config.hidden_size, config.hc_mult, config.engram_head_dim
    rows = next(table.rows for table in engram_tables(config) if table.layer_id == layer_id)
    yield "engram.embed.weight", TensorSpec((rows, columns), StorageKind.FP8_ROWS)
    yield "engram.wkv.weight", _fp8((copies + 1) * dim, config.engram_rows_per_token * columns)
    yield "engram.q_weight", _bf16(copies, dim)
    yield "engram.k_weight", _bf16(copies, dim)


def _draft_head_specs(config: ModelConfig) -> Named:
    if not config.num_nextn_predict_layers:
        return
    dim, rank, vocabulary = config.hidden_size, config.dspark_markov_rank, config.vocab_size
    yield "mtp.0.main_proj.weight", _fp8(dim, dim * len(config.dspark_target_layer_ids))
    yield "mtp.0.main_norm.weight", _bf16(dim)
    last = f"mtp.{config.num_nextn_predict_layers - 1}."
    yield last + "norm.weight", _bf16(dim)
    yield last + "markov_head.embed.weight", _bf16(vocabulary, rank)
    yield last + "markov_head.head.weight", _bf16(vocabulary, rank)
    yield last + "confidence_head.proj.weight", _bf16(1, dim + rank)


def _vision_specs(config: ModelConfig) -> Named:
    vision = config.vision
    if vision is None:
        return
    width, inner, patch = vision.hidden_size, vision.intermediate_size, vision.patch_size
    flat, conv = (width, _PATCH_CHANNELS * patch * patch), (width, _PATCH_CHANNELS, patch, patch)
    yield "vision.patch_embed.proj.weight", TensorSpec(flat, StorageKind.BF16, other_shape=conv)
    yield "vision.patch_embed.proj.bias", _bf16(width)
    for block in range(vision.num_hidden_layers):
        prefix = f"vision.blocks.{block}."
        yield prefix + "norm1.weight", _bf16(width)
        yield prefix + "norm2.weight", _bf16(width)
        yield prefix + "attn.wqkv.weight", _bf16(3 * width, width)
        yield prefix + "attn.wqkv.bias", _bf16(3 * width)
        yield prefix + "attn.wo.weight", _bf16(width, width)
        yield prefix + "attn.wo.bias", _bf16(width)
        yield prefix + "mlp.w1.weight", _bf16(2 * inner, width)
        yield prefix + "mlp.w2.weight", _bf16(width, inner)
    yield "vision.norm.weight", _bf16(width)
    merged = width * vision.downsample_ratio**2
    yield "aligner.w1.weight", _bf16(config.hidden_size, merged)
    yield "aligner.w1.bias", _bf16(config.hidden_size)
    yield "aligner.w2.weight", _bf16(config.hidden_size, config.hidden_size)
    yield "aligner.w2.bias", _bf16(config.hidden_size)
