"""Random weights in which every term matters.

A default initialisation hides mistakes: with norms of one, sinks and biases of zero and constant mixes, half
of the formulas could be wrong unseen. Here norms differ from one, every bias and sink is random, mixes depend
on the data, and matrices are scaled so that activations stay near one through all layers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.roles import LayerRole, layer_roles

from .oracle import engram


class _Generator:
    """Draws tensors in float64 and collects them by name."""

    def __init__(self, seed: int) -> None:
        self._random = torch.Generator().manual_seed(seed)
        self.weights: dict[str, Tensor] = {}

    def normal(self, name: str, *shape: int, scale: float = 1.0, mean: float = 0.0) -> None:
        drawn = torch.randn(*shape, generator=self._random, dtype=torch.float64)
        self.weights[name] = drawn * scale + mean

    def matrix(self, name: str, rows: int, columns: int) -> None:
        self.normal(name, rows, columns, scale=1 / math.sqrt(columns))

    def norm(self, name: str, width: int) -> None:
        self.normal(name, width, scale=0.25, mean=1.0)


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Every language-model tensor of `config` by its published name (model_spec 4.2 to 4.4), float64."""
    draw = _Generator(seed)
    d = config.hidden_size
    draw.normal("embed.weight", config.vocab_size, d)
    draw.matrix("head.weight", config.vocab_size, d)
    draw.norm("norm.weight", d)
    for name in ("image_start", "image_end", "image_newline"):
        draw.normal(name, d)
    for role in layer_roles(config):
        if role.is_draft:
            prefix = f"mtp.{role.layer_id - config.num_hidden_layers}."
            _block(draw, config, prefix, role, config.dspark_n_routed_experts)
        else:
            _block(draw, config, f"layers.{role.layer_id}.", role, config.n_routed_experts)
    if config.num_nextn_predict_layers:
        _draft_heads(draw, config)
    return draw.weights


def _block(draw: _Generator, config: ModelConfig, prefix: str, role: LayerRole, experts: int) -> None:
    d = config.hidden_size
    draw.norm(prefix + "attn_norm.weight", d)
    draw.norm(prefix + "ffn_norm.weight", d)
    for sublayer in ("attn", "ffn"):
        _mixes(draw, config, f"{prefix}hc_{sublayer}_")
    _attention(draw, config, prefix + "attn.", role)
    draw.matrix(prefix + "ffn.gate.weight", experts, d)
    draw.normal(prefix + "ffn.gate.bias", experts, scale=0.2)
    draw.normal(prefix + "ffn.gate.bias_vl", experts, scale=0.2)
    inner = config.moe_intermediate_size
    _expert(draw, config, prefix + "ffn.shared_experts.", inner * config.n_shared_experts)
    for expert in range(experts):
        _expert(draw, config, f"{prefix}ffn.experts.{expert}.", inner)
    if role.has_engram:
        _engram(draw, config, prefix + "engram.", role.layer_id)


def _mixes(draw: _Generator, config: ModelConfig, prefix: str) -> None:
    c = config.hc_mult
    draw.matrix(prefix + "fn", config.mix_size, c * config.hidden_size)
    draw.normal(prefix + "base", config.mix_size, scale=0.5)
    draw.normal(prefix + "scale", 3, scale=0.2, mean=1.0)
    draw.weights[prefix + "base"][2 * c :] += 2 * torch.eye(c, dtype=torch.float64).flatten()


def _attention(draw: _Generator, config: ModelConfig, prefix: str, role: LayerRole) -> None:
    d, head_dim, low_rank = config.hidden_size, config.head_dim, config.q_lora_rank
    heads_dim, output_rank = config.num_attention_heads * head_dim, config.o_groups * config.o_lora_rank
    draw.matrix(prefix + "wq_a.weight", low_rank, d)
    draw.norm(prefix + "q_norm.weight", low_rank)
    draw.matrix(prefix + "wq_b.weight", heads_dim, low_rank)
    draw.matrix(prefix + "wkv.weight", head_dim, d)
    draw.norm(prefix + "kv_norm.weight", head_dim)
    draw.normal(prefix + "attn_sink", config.num_attention_heads)
    draw.matrix(prefix + "wo_a.weight", output_rank, heads_dim // config.o_groups)
    draw.matrix(prefix + "wo_b.weight", d, output_rank)
    if role.is_kv_source:
        draw.matrix(prefix + "compressor.wkv.weight", head_dim, d)
        draw.norm(prefix + "compressor.norm.weight", head_dim)
        if role.ratio > 1:
            draw.matrix(prefix + "compressor.wgate.weight", head_dim, d)
    if role.is_index_source:
        draw.matrix(prefix + "indexer.wq_b.weight", config.index_n_heads * config.index_head_dim, low_rank)
        draw.matrix(prefix + "indexer.weights_proj.weight", config.index_n_heads, d)
    if role.is_index_k_source:
        draw.matrix(prefix + "indexer.wk.weight", config.index_head_dim, head_dim)
        draw.norm(prefix + "indexer.k_norm.weight", config.index_head_dim)


def _expert(draw: _Generator, config: ModelConfig, prefix: str, inner: int) -> None:
    draw.matrix(prefix + "w1.weight", inner, config.hidden_size)
    draw.matrix(prefix + "w3.weight", inner, config.hidden_size)
    draw.matrix(prefix + "w2.weight", config.hidden_size, inner)


def _engram(draw: _Generator, config: ModelConfig, prefix: str, layer: int) -> None:
    rows = sum(engram.primes(config)[layer])
    c, d = config.hc_mult, config.hidden_size
    draw.normal(prefix + "embed.weight", rows, config.engram_head_dim)
    draw.matrix(prefix + "wkv.weight", (c + 1) * d, config.engram_rows_per_token * config.engram_head_dim)
    draw.normal(prefix + "q_weight", c, d, scale=0.25, mean=1.0)
    draw.normal(prefix + "k_weight", c, d, scale=0.25, mean=1.0)


def _draft_heads(draw: _Generator, config: ModelConfig) -> None:
    d, rank = config.hidden_size, config.dspark_markov_rank
    last = f"mtp.{config.num_nextn_predict_layers - 1}."
    draw.matrix("mtp.0.main_proj.weight", d, len(config.dspark_target_layer_ids) * d)
    draw.norm("mtp.0.main_norm.weight", d)
    draw.norm(last + "norm.weight", d)
    draw.normal(last + "markov_head.embed.weight", config.vocab_size, rank)
    draw.matrix(last + "markov_head.head.weight", config.vocab_size, rank)
    draw.matrix(last + "confidence_head.proj.weight", 1, d + rank)
