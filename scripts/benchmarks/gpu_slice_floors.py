"""The least time a step of the slice could take: bytes that must move, operations that must be done."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch

from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.roles import LayerRole, layer_roles
from stepahead.engine.model.v41.weights import BlockWeights, weight_bytes

_BF16_BYTES = 2


@dataclass(frozen=True)
class Ceilings:
    """Rates measured on this card: bytes a second of a copy, read and written; operations of a product."""

    copy: float
    product: float


@dataclass(frozen=True)
class Work:
    bytes: float
    flops: float

    def floor(self, ceilings: Ceilings) -> float:
        """Microseconds."""
        return 1e6 * max(self.bytes / ceilings.copy, self.flops / ceilings.product)

    @staticmethod
    def sum(parts: Mapping[str, Work]) -> Work:
        return Work(sum(w.bytes for w in parts.values()), sum(w.flops for w in parts.values()))


def measure_ceilings() -> Ceilings:
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda").random_()
    copied = 2 * source.numel() / _seconds(functools.partial(torch.empty_like(source).copy_, source))
    left, right = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    return Ceilings(copied, 2 * 8192**3 / _seconds(functools.partial(torch.mm, left, right)))


def _seconds(call: functools.partial[torch.Tensor]) -> float:
    times = []
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times[2:])[3]


def step_work(model: Model, batch: int, context: int, chunk: int, distinct_experts: int) -> dict[str, Work]:
    """By part. `distinct_experts` is summed over layers, `chunk` the rows of each sequence."""
    config, weights = model.config, model.weights
    rows = batch * chunk
    pairs = list(zip(layer_roles(config), weights.blocks, strict=True))
    head = weight_bytes(weights.head)
    head_rows = batch if chunk > 1 else rows
    return {
        "experts": _experts(model, rows, distinct_experts),
        "linear": _linears((block for _, block in pairs), rows),
        "attention": _attention(model, batch, chunk, context, [role for role, _ in pairs]),
        "indexer": _indexer(model, batch, chunk, context, [role for role, _ in pairs]),
        "streams": _streams((block for _, block in pairs), rows, config.hc_mult * config.hidden_size),
        "head": Work(head, 2.0 * head_rows * config.vocab_size * config.hidden_size),
    }


def _experts(model: Model, rows: int, distinct: int) -> Work:
    config, blocks = model.config, model.weights.blocks
    one = (weight_bytes(blocks[0].ffn.gate_up) + weight_bytes(blocks[0].ffn.down)) / config.n_routed_experts
    fixed = sum(
        weight_bytes(b.ffn.shared_gate_up) + weight_bytes(b.ffn.shared_down) + weight_bytes(b.ffn.gate)
        for b in blocks
    )
    matrices = 3 * config.hidden_size * config.moe_intermediate_size * (config.num_experts_per_tok + 1)
    return Work(distinct * one + fixed, 2.0 * rows * matrices * len(blocks))


def _linears(blocks: Iterable[BlockWeights], rows: int) -> Work:
    total_bytes = elements = 0
    for block in blocks:
        attention = block.attention
        matrices = [attention.query_a_kv, attention.query_b, attention.output_a, attention.output_b]
        if attention.compressor is not None:
            matrices.append(attention.compressor.value_gate)
        if attention.indexer is not None:
            matrices.append(attention.indexer.query)
        if block.engram is not None:
            matrices.append(block.engram.projection)
        total_bytes += sum(weight_bytes(m) for m in matrices)
        elements += sum(torch.Size(m.shape).numel() for m in matrices)
    return Work(total_bytes, 2.0 * rows * elements)


def _attention(model: Model, batch: int, chunk: int, context: int, roles: list[LayerRole]) -> Work:
    """A row of a chunk shares most of its window with its neighbour; chosen entries are its own."""
    config = model.config
    rows, entry = batch * chunk, config.head_dim * _BF16_BYTES
    moved = flops = 0.0
    for role in roles:
        window = min(config.sliding_window, context)
        chosen = min(config.index_topk, context // role.ratio) if role.ratio else 0
        distinct = min(rows * chosen, batch * context // role.ratio) if role.ratio else 0
        moved += (batch * (window + chunk - 1) + distinct) * entry
        moved += 2 * rows * config.num_attention_heads * config.head_dim * _BF16_BYTES
        flops += 4.0 * rows * config.num_attention_heads * config.head_dim * (window + chosen)
    return Work(moved, flops)


def _indexer(model: Model, batch: int, chunk: int, context: int, roles: list[LayerRole]) -> Work:
    config = model.config
    moved = flops = 0.0
    for role in roles:
        if not role.is_index_source or context // role.ratio <= config.index_topk:
            continue
        entries = context // role.ratio
        candidates = config.candidate_topk_blocks * config.candidate_block_size
        seen = min(entries, candidates) if role.uses_candidates else entries
        scored = seen - chunk / 2 / role.ratio if chunk > 1 and not role.uses_candidates else seen
        moved += batch * min(entries, seen * chunk) * config.index_head_dim * _BF16_BYTES
        flops += 2.0 * batch * chunk * scored * config.index_n_heads * config.index_head_dim
    return Work(moved, flops)


def _streams(blocks: Iterable[BlockWeights], rows: int, width: int) -> Work:
    """Hyper-connections: their matrices, and the streams read and written once a sublayer."""
    moved = flops = 0.0
    for block in blocks:
        for mix in (block.attention_mix, block.ffn_mix):
            moved += weight_bytes(mix.weight) + 2 * rows * width * _BF16_BYTES
            flops += 2.0 * rows * mix.weight.numel()
    return Work(moved, flops)
