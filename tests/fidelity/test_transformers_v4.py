"""Where V4 and V4.1 agree, our functions equal those of transformers' `deepseek_v4` on random weights.

An implementation by other people is the best protection against a formula misread twice. Compared are the
parts that V4.1 kept (model_spec 6.1); what it changed is left to the vectors of the publisher's reference.
The peer computes norms, rotations and mixes in float32, so that is the precision of the comparison.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stepahead.devices.kernels.operations import REFERENCE
from stepahead.devices.kernels.reference import attention, experts, hyper_connections, indexer
from stepahead.devices.kernels.reference.norm import rms_norm
from stepahead.devices.kernels.reference.rotary import (
    plain_frequencies,
    rotary_table,
    rotate_,
    yarn_frequencies,
)
from stepahead.engine.model.v41.attention import Attention
from stepahead.engine.model.v41.batch import SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import CacheShape, allocate_caches
from stepahead.engine.model.v41.compressed import Selections
from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.feed_forward import FeedForward
from stepahead.engine.model.v41.numerics import exact
from stepahead.engine.model.v41.roles import layer_roles
from stepahead.engine.model.v41.step import StepIndexer, rotary_tables
from stepahead.engine.model.v41.weights import AttentionWeights, ExpertWeights

from .configurations import small_config

peer = pytest.importorskip(
    "transformers.models.deepseek_v4.modeling_deepseek_v4",
    reason="the peer, transformers 5.24, is not installed",
)
masking = pytest.importorskip("transformers.masking_utils")

CPU = torch.device("cpu")
EPS = 1e-6  # the peer's; ours is a parameter
ROWS = 40


def peer_config(config: ModelConfig, **changes: Any) -> Any:
    """The peer's configuration of the same dimensions, all layers window-only and routed."""
    layers = config.num_hidden_layers
    scaling = config.rope_scaling
    assert scaling is not None
    fields = {
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size, "num_hidden_layers": layers,
        "moe_intermediate_size": config.moe_intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "head_dim": config.head_dim, "q_lora_rank": config.q_lora_rank, "o_groups": config.o_groups,
        "o_lora_rank": config.o_lora_rank, "n_routed_experts": config.n_routed_experts,
        "num_experts_per_tok": config.num_experts_per_tok, "swiglu_limit": config.swiglu_limit,
        "routed_scaling_factor": config.routed_scaling_factor, "sliding_window": config.sliding_window,
        "index_n_heads": config.index_n_heads, "index_head_dim": config.index_head_dim,
        "index_topk": config.index_topk, "hc_mult": config.hc_mult, "hc_eps": config.hc_eps,
        "hc_sinkhorn_iters": config.hc_sinkhorn_iters, "rms_norm_eps": EPS,
        "max_position_embeddings": config.max_position_embeddings, "rope_theta": config.rope_theta,
        "compress_rope_theta": config.compress_rope_theta,
        "partial_rotary_factor": config.qk_rope_head_dim / config.head_dim,
        "rope_parameters": {
            "rope_type": "yarn", "factor": float(scaling.factor), "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        },
        "layer_types": ["sliding_attention"] * layers, "mlp_layer_types": ["moe"] * layers,
        "attn_implementation": "eager",
    }  # fmt: skip
    return peer.DeepseekV4Config(**{**fields, **changes})


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return small_config(rms_norm_eps=EPS)


@pytest.fixture(autouse=True)
def _seed_and_no_gradients() -> Any:
    torch.manual_seed(0)
    with torch.inference_mode():
        yield


def randomise(module: nn.Module) -> None:
    """Weights in which every term matters: norms near one, all else normal and scaled by its fan-in."""
    for name, parameter in (*module.named_parameters(), *module.named_buffers()):
        if "inv_freq" in name:
            continue
        fan_in = parameter.shape[-1] if parameter.ndim > 1 else 1
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=fan_in**-0.5 / 2)


def assert_equal(ours: Tensor, theirs: Tensor, tolerance: float = 2e-5) -> None:
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, check_dtype=False)


def turns_of(frequencies: list[float], length: int = ROWS) -> Tensor:
    return rotary_table(frequencies, length, torch.float32, CPU)


@pytest.mark.parametrize(
    ("rotary_dim", "factor", "original_length"), [(64, 16.0, 65536), (16, 4.0, 256), (16, 8.0, 4096)]
)
def test_rotary_frequencies(rotary_dim: int, factor: float, original_length: int) -> None:
    scaling = {
        "factor": factor,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": original_length,
    }
    theirs = peer.DeepseekV4RotaryEmbedding(
        peer_config(
            small_config(head_dim=128, qk_rope_head_dim=rotary_dim, rope_scaling=scaling),
            max_position_embeddings=int(factor * original_length),
        )
    )
    ours = yarn_frequencies(
        160000.0, rotary_dim, factor=factor, beta_fast=32, beta_slow=1, original_length=original_length
    )
    assert theirs.compress_attention_scaling == 1.0
    assert_equal(torch.tensor(plain_frequencies(10000.0, rotary_dim)), theirs.main_inv_freq)
    assert_equal(torch.tensor(ours), theirs.compress_inv_freq)


@pytest.mark.parametrize("inverse", [False, True])
def test_rotation_and_un_rotation_of_the_last_dimensions(config: ModelConfig, inverse: bool) -> None:
    theirs = peer.DeepseekV4RotaryEmbedding(peer_config(config))
    x = torch.randn(1, config.num_attention_heads, ROWS, config.head_dim)
    cos, sin = theirs(x, torch.arange(ROWS)[None], layer_type="main")
    expected = peer.apply_rotary_pos_emb(x, cos, -sin if inverse else sin)[0].transpose(0, 1)
    turns = turns_of(plain_frequencies(config.rope_theta, config.qk_rope_head_dim))
    ours = rotate_(x[0].transpose(0, 1).clone(), turns.unsqueeze(1), inverse=inverse)
    assert_equal(ours, expected)


def test_attention_core_over_window_and_entries_with_a_sink(config: ModelConfig) -> None:
    """Our two pools and index lists against the peer's one key axis and mask; rows without keys included."""
    heads, dim, entries = config.num_attention_heads, config.head_dim, 20
    module = nn.Module()
    module.num_key_value_groups = heads
    module.sinks = nn.Parameter(torch.randn(heads))
    query, window, compressed = (
        torch.randn(ROWS, heads, dim),
        torch.randn(ROWS, dim),
        torch.randn(entries, dim),
    )
    sees_window = torch.rand(ROWS, ROWS) < 0.3
    sees_entry = torch.rand(ROWS, entries) < 0.3
    sees_window[3], sees_entry[3] = False, False
    visible = torch.cat((sees_window, sees_entry), dim=1)
    mask = torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)
    keys = torch.cat((window, compressed))[None, None]
    expected, _ = peer.eager_attention_forward(
        module, query.transpose(0, 1)[None], keys, keys, mask[None, None], scaling=dim**-0.5
    )
    index = [
        attention.KeyIndex.of(torch.where(sees, torch.arange(sees.shape[1]), -1), torch.float32)
        for sees in (sees_window, sees_entry)
    ]
    ours = attention.sparse_attention(query, window, index[0], compressed, index[1], module.sinks, dim**-0.5)
    assert_equal(ours, expected[0])
    assert not ours[3].any()


def test_a_whole_window_attention_sublayer(config: ModelConfig) -> None:
    """Queries, shared keys, window, sink, un-rotation and grouped output projection, composed."""
    theirs = peer.DeepseekV4Attention(peer_config(config), layer_idx=0)
    randomise(theirs)
    theirs.q_b_norm = nn.Identity()  # V4.1 has no norm behind wq_b (model_spec 6.1)
    inputs = torch.randn(1, ROWS, config.hidden_size)
    positions = torch.arange(ROWS)[None]
    mask = masking.create_sliding_window_causal_mask(
        config=theirs.config, inputs_embeds=inputs, attention_mask=None, cache=None, position_ids=positions
    )
    rotary = peer.DeepseekV4RotaryEmbedding(theirs.config)(inputs, positions, layer_type="main")
    expected, _ = theirs(inputs, {"main": rotary}, positions, mask)
    weights = AttentionWeights(
        query_a_kv=torch.cat((theirs.q_a_proj.weight, theirs.kv_proj.weight)),
        query_norm=theirs.q_a_norm.weight,
        query_b=theirs.q_b_proj.weight,
        kv_norm=theirs.kv_norm.weight,
        sink=theirs.sinks,
        output_a=theirs.o_a_proj.weight.view(config.o_groups, config.o_lora_rank, -1),
        output_b=theirs.o_b_proj.weight,
        compressor=None,
        indexer=None,
    )
    assert_equal(_run_attention(config, weights, inputs[0]), expected[0])


def _run_attention(config: ModelConfig, weights: AttentionWeights, inputs: Tensor) -> Tensor:
    """Layer 0 of our model over one sequence, fed in two chunks so that the ring is read as well."""
    numerics, roles = exact(torch.float32), layer_roles(config)
    shape = CacheShape(blocks=2, state_slots=2, max_rows=ROWS)
    caches = allocate_caches(config, numerics, shape, CPU)
    step_indexer = StepIndexer(config, roles, rotary_tables(config, numerics, CPU, ROWS), shape)
    layer = Attention(config, numerics, roles[0], weights, REFERENCE)
    outputs = []
    for start, end in ((0, 25), (25, ROWS)):
        chunk = SequenceChunk([0] * (end - start), start, state_slot=1, block_table=[1])
        step = step_indexer.producers(build_batch([chunk], CPU, ngram=config.engram_max_ngram_size))
        outputs.append(layer(inputs[start:end], step, caches, Selections(), None))
    return torch.cat(outputs)


def test_gate_scores_choice_and_weights(config: ModelConfig) -> None:
    theirs = peer.DeepseekV4TopKRouter(peer_config(config))
    randomise(theirs)
    inputs = torch.randn(ROWS, config.hidden_size)
    logits, expected_weights, expected_chosen = theirs(inputs)
    bias = theirs.e_score_correction_bias
    chosen, weights = experts.route(
        experts.gate_scores(logits), bias, config.num_experts_per_tok, config.routed_scaling_factor
    )
    dense = torch.zeros(2, ROWS, config.n_routed_experts)
    assert_equal(dense[0].scatter(1, chosen, weights), dense[1].scatter(1, expected_chosen, expected_weights))
    unbiased, _ = experts.route(
        experts.gate_scores(logits), torch.zeros_like(bias), config.num_experts_per_tok, 1.0
    )
    assert not torch.equal(unbiased.sort().values, chosen.sort().values)  # the bias decided somewhere


def test_swiglu_clamps_the_gate_from_above_and_the_other_half_on_both_sides(config: ModelConfig) -> None:
    theirs = peer.DeepseekV4Experts(peer_config(config))
    gate_up = torch.randn(ROWS, 64) * 12
    assert (gate_up.abs() > config.swiglu_limit).any()
    assert_equal(experts.swiglu(gate_up, config.swiglu_limit), theirs._apply_gate(gate_up))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_whole_mixture_of_experts_sublayer(config: ModelConfig, dtype: torch.dtype) -> None:
    """Float64 takes our path without a grouped product; the peer stays in float32."""
    theirs = peer.DeepseekV4SparseMoeBlock(peer_config(config), layer_idx=0)
    randomise(theirs)
    inputs = torch.randn(ROWS, config.hidden_size) * 8
    shared = theirs.shared_experts
    weights = ExpertWeights(
        gate=theirs.gate.weight.to(dtype),
        text_bias=theirs.gate.e_score_correction_bias.to(dtype),
        image_bias=torch.full_like(theirs.gate.e_score_correction_bias, torch.nan),
        gate_up=theirs.experts.gate_up_proj.to(dtype),
        down=theirs.experts.down_proj.to(dtype),
        shared_gate_up=torch.cat((shared.gate_proj.weight, shared.up_proj.weight)).to(dtype),
        shared_down=shared.down_proj.weight.to(dtype),
        top_k=config.num_experts_per_tok,
    )
    ours = FeedForward(config, exact(dtype), 0, weights, REFERENCE)(inputs.to(dtype), None, None)
    assert_equal(ours, theirs(inputs[None])[0].to(dtype), tolerance=1e-4)


@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_hyper_connection_mixes_contraction_and_expansion(config: ModelConfig, iterations: int) -> None:
    copies = config.hc_mult
    theirs = peer.DeepseekV4HyperConnection(peer_config(config, hc_sinkhorn_iters=iterations))
    randomise(theirs)
    theirs.scale.copy_(torch.tensor([0.7, 1.3, 2.0]))
    streams, output = torch.randn(ROWS, copies, config.hidden_size), torch.randn(ROWS, config.hidden_size)
    expected_post, expected_comb, expected_input = (x[0] for x in theirs(streams[None]))
    pre, post, comb = hyper_connections.mixes(
        streams,
        theirs.fn,
        theirs.base,
        theirs.scale.repeat_interleave(torch.tensor([copies, copies, copies**2])),
        hyper_connections.sum_matrices(copies, torch.float32, CPU),
        iterations=iterations,
        hc_eps=config.hc_eps,
        norm_eps=EPS,
    )
    assert_equal(post, expected_post)
    assert_equal(comb, expected_comb)
    assert_equal(hyper_connections.contract(streams, pre), expected_input)
    mixed = expected_post.unsqueeze(-1) * output.unsqueeze(-2) + expected_comb.transpose(-1, -2) @ streams
    assert_equal(hyper_connections.expand(output, streams, post, comb), mixed)


def test_indexer_scores(config: ModelConfig) -> None:
    theirs = peer.DeepseekV4IndexerScorer(peer_config(config))
    randomise(theirs)
    heads, dim = config.index_n_heads, config.index_head_dim
    query, keys = torch.randn(1, ROWS, heads, dim), torch.randn(1, 30, dim)
    inputs = torch.randn(1, ROWS, config.hidden_size)
    head_weights = theirs.weights_proj(inputs) * (heads * dim) ** -0.5
    ours = indexer.index_scores(query, keys, head_weights, narrow=False)
    assert_equal(ours, theirs(query, keys, inputs))


def test_root_mean_square_norm() -> None:
    theirs = peer.DeepseekV4RMSNorm(48, eps=EPS)
    randomise(theirs)
    x = torch.randn(ROWS, 48) * 3
    assert_equal(rms_norm(x, nn.init.normal_(theirs.weight), EPS), theirs(x))
