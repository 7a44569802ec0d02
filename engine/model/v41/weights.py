"""The tensors of a model, as the arithmetic wants them.

A checkpoint names one tensor per matrix and expert. Here matrices that share an input are stacked (one
product instead of two), experts form one tensor, and the three scales of a hyper-connection are repeated over
the coefficients they scale. Stacks are allocated once and filled tensor by tensor, so a model is never in
memory twice. Nothing is transposed, permuted or folded (model_spec 4.7).

By default every weight is expanded to the model's type. A device whose kernels expand in registers keeps what
the checkpoint stores quantized (`keep_quantized`): the same values, in a half to a quarter of the memory.
Embeddings, which a checkpoint stores plainly, are expanded either way.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Protocol, cast, overload

import torch
from torch import Tensor

from stepahead.devices.kernels.quantized import (
    GROUP,
    QuantizedWeight,
    Weight,
    WeightFormat,
    concatenate,
)
from stepahead.devices.kernels.quantized_rows import QuantizedRows, Table

from ..checkpoint.formats import QuantizedTensor
from ..checkpoint.layout import tensor_specs
from ..checkpoint.storage import StorageKind, TensorSpec
from .config import ModelConfig
from .numerics import Numerics
from .roles import LayerRole, layer_roles


class TensorSource(Protocol):
    """Where weights come from: a checkpoint, a random generator, a dictionary in a test."""

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The dequantized tensor of a checkpoint name, without `model.`, on the CPU."""
        ...

    def __contains__(self, name: str) -> bool: ...


class StoredSource(TensorSource, Protocol):
    """A source that can also hand out weights as a checkpoint stores them."""

    def read_stored(self, name: str, spec: TensorSpec) -> Tensor | QuantizedTensor:
        """The weight in the storage of `spec`, on the CPU."""
        ...


@dataclass(frozen=True)
class MixWeights:
    """One hyper-connection (model_spec 2.2), in the wide type."""

    weight: Tensor  # [(2 + copies) * copies, copies * dim]
    base: Tensor  # [(2 + copies) * copies]
    scale: Tensor  # [(2 + copies) * copies]


@dataclass(frozen=True)
class CompressorWeights:
    value_gate: Tensor  # [head_dim * (1 or 2), dim]: wkv, then wgate where the ratio is above 1
    norm: Tensor


@dataclass(frozen=True)
class IndexerWeights:
    query: Weight  # [index_heads * index_dim, q_lora]
    head_weights: Tensor  # [index_heads, dim]
    key: Tensor | None  # [index_dim, head_dim], in index-K sources
    key_norm: Tensor | None


@dataclass(frozen=True)
class AttentionWeights:
    query_a_kv: Weight  # [q_lora + head_dim, dim]: wq_a, then wkv
    query_norm: Tensor
    query_b: Weight  # [heads * head_dim, q_lora]
    kv_norm: Tensor
    sink: Tensor  # [heads]
    output_a: Weight  # [groups, o_lora, heads / groups * head_dim]
    output_b: Weight  # [dim, groups * o_lora]
    compressor: CompressorWeights | None
    indexer: IndexerWeights | None


@dataclass(frozen=True)
class ExpertWeights:
    """The feed-forward sublayer: gate, routed experts, shared expert (model_spec 2.9)."""

    gate: Tensor  # [experts, dim]
    text_bias: Tensor  # [experts]
    image_bias: Tensor  # [experts]
    gate_up: Weight  # [experts, 2 * inner, dim]: w1, then w3
    down: Weight  # [experts, dim, inner]
    shared_gate_up: Weight  # [2 * shared_inner, dim]
    shared_down: Weight  # [dim, shared_inner]
    top_k: int


@dataclass(frozen=True)
class EngramWeights:
    table: Table  # [rows, engram_dim]
    projection: Weight  # [(copies + 1) * dim, rows_per_token * engram_dim]
    query_key: Tensor  # [copies, dim]: q_weight * k_weight, wide


@dataclass(frozen=True)
class BlockWeights:
    attention_norm: Tensor
    attention_mix: MixWeights
    attention: AttentionWeights
    ffn_norm: Tensor
    ffn_mix: MixWeights
    ffn: ExpertWeights
    engram: EngramWeights | None


@dataclass(frozen=True)
class DraftWeights:
    """What the DSpark block has besides its layers (model_spec 3)."""

    main_projection: Weight  # [dim, targets * dim]
    main_norm: Tensor
    norm: Tensor
    markov_embed: Tensor  # [vocab, rank]
    markov_head: Tensor  # [vocab, rank]
    confidence: Tensor  # [1, dim + rank]
    blocks: tuple[BlockWeights, ...]


@dataclass(frozen=True)
class ModelWeights:
    embed: Tensor  # [vocab, dim]
    head: Tensor  # [vocab, dim]
    norm: Tensor
    blocks: tuple[BlockWeights, ...]
    draft: DraftWeights | None


_KEPT = (StorageKind.FP8_BLOCK, StorageKind.MXFP4)
"""What stays quantized: matrices. Tables with a scale per row are looked up, not multiplied by."""


class _Stack:
    """Matrices of equal shape written into one stack, allocated when the first of them is known."""

    def __init__(self, count: int, parts: int) -> None:
        self._count, self._parts = count, parts
        self._tensors: list[Tensor] = []
        self._format: WeightFormat | None = None

    def fill(self, place: int, part: int, weight: Weight) -> None:
        """Write `weight` as the `part`-th of the matrices that lie under each other at `place`."""
        pieces = [weight.payload, weight.scales] if isinstance(weight, QuantizedWeight) else [weight]
        if not self._tensors:
            self._format = weight.format if isinstance(weight, QuantizedWeight) else None
            self._tensors = [
                torch.empty(self._count, self._parts * p.shape[0], p.shape[1], dtype=p.dtype, device=p.device)
                for p in pieces
            ]
        for tensor, piece in zip(self._tensors, pieces, strict=True):
            rows = piece.shape[0]
            tensor[place, part * rows : (part + 1) * rows] = piece

    def weight(self) -> Weight:
        if self._format is None:
            return self._tensors[0]
        payload, scales = self._tensors
        return QuantizedWeight(payload, scales, self._format)


class _Loader:
    """Reads named tensors to one device, stacking as it goes."""

    def __init__(
        self,
        config: ModelConfig,
        source: TensorSource,
        numerics: Numerics,
        device: torch.device,
        stored: StoredSource | None,
    ) -> None:
        self._config = config
        self._source = source
        self._numerics = numerics
        self._device = device
        self._stored = stored
        self._specs = tensor_specs(config) if stored is not None else {}

    def matrix(self, name: str) -> Tensor:
        return self._source.read(name, self._numerics.dtype).to(self._device)

    def wide(self, name: str) -> Tensor:
        return self._source.read(name, self._numerics.wide).to(self._device)

    def weight(self, name: str) -> Weight:
        """A matrix to multiply by: as it is stored if the loader keeps that, else expanded."""
        spec = self._specs.get(name)
        if self._stored is None or spec is None or spec.kind not in _KEPT:
            return self.matrix(name)
        stored = self._stored.read_stored(name, spec)
        assert isinstance(stored, QuantizedTensor)  # the spec says so
        return stored.kept().to(self._device)

    def table(self, name: str) -> Table:
        """A table to look rows up in: as it is stored if the loader keeps that, else expanded."""
        spec = self._specs.get(name)
        if self._stored is None or spec is None or spec.kind is not StorageKind.FP8_ROWS:
            return self.matrix(name)
        stored = self._stored.read_stored(name, spec)
        assert isinstance(stored, QuantizedTensor)  # the spec says so
        return QuantizedRows(stored.payload, stored.scales).to(self._device)

    def stack_rows(self, *names: str) -> Tensor:
        return torch.cat([self.matrix(name) for name in names])

    def stack_weights(self, *names: str) -> Weight:
        weights = [self.weight(name) for name in names]
        kept = [weight for weight in weights if isinstance(weight, QuantizedWeight)]
        if len(kept) < len(weights):
            return torch.cat([weight for weight in weights if isinstance(weight, Tensor)])
        return concatenate(kept)

    def mix(self, prefix: str) -> MixWeights:
        copies = self._config.hc_mult
        repeats = torch.tensor([copies, copies, copies * copies], device=self._device)
        scale = self.wide(f"{prefix}_scale").repeat_interleave(repeats)
        return MixWeights(self.wide(f"{prefix}_fn"), self.wide(f"{prefix}_base"), scale)

    def attention(self, prefix: str, role: LayerRole) -> AttentionWeights:
        groups = self._config.o_groups
        output_a = self.weight(f"{prefix}.wo_a.weight")
        if isinstance(output_a, QuantizedWeight) and output_a.shape[0] // groups % GROUP:
            output_a = output_a.dequantize(self._numerics.dtype)  # a block of rows would span two groups
        return AttentionWeights(
            query_a_kv=self.stack_weights(f"{prefix}.wq_a.weight", f"{prefix}.wkv.weight"),
            query_norm=self.wide(f"{prefix}.q_norm.weight"),
            query_b=self.weight(f"{prefix}.wq_b.weight"),
            kv_norm=self.wide(f"{prefix}.kv_norm.weight"),
            sink=self.wide(f"{prefix}.attn_sink"),
            output_a=output_a.view(groups, output_a.shape[0] // groups, output_a.shape[1]),
            output_b=self.weight(f"{prefix}.wo_b.weight"),
            compressor=self._compressor(f"{prefix}.compressor", role) if role.is_kv_source else None,
            indexer=self._indexer(f"{prefix}.indexer", role) if role.is_index_source else None,
        )

    def _compressor(self, prefix: str, role: LayerRole) -> CompressorWeights:
        names = [f"{prefix}.wkv.weight"] + ([f"{prefix}.wgate.weight"] if role.ratio > 1 else [])
        return CompressorWeights(self.stack_rows(*names), self.wide(f"{prefix}.norm.weight"))

    def _indexer(self, prefix: str, role: LayerRole) -> IndexerWeights:
        owns_key = role.is_index_k_source
        return IndexerWeights(
            query=self.weight(f"{prefix}.wq_b.weight"),
            head_weights=self.matrix(f"{prefix}.weights_proj.weight"),
            key=self.matrix(f"{prefix}.wk.weight") if owns_key else None,
            key_norm=self.wide(f"{prefix}.k_norm.weight") if owns_key else None,
        )

    def experts(self, prefix: str, count: int, top_k: int) -> ExpertWeights:
        gate_up = _Stack(count, 2)
        down = _Stack(count, 1)
        for expert in range(count):
            gate_up.fill(expert, 0, self.weight(f"{prefix}.experts.{expert}.w1.weight"))
            gate_up.fill(expert, 1, self.weight(f"{prefix}.experts.{expert}.w3.weight"))
            down.fill(expert, 0, self.weight(f"{prefix}.experts.{expert}.w2.weight"))
        shared = f"{prefix}.shared_experts"
        return ExpertWeights(
            gate=self.matrix(f"{prefix}.gate.weight"),
            text_bias=self.wide(f"{prefix}.gate.bias"),
            image_bias=self.wide(f"{prefix}.gate.bias_vl"),
            gate_up=gate_up.weight(),
            down=down.weight(),
            shared_gate_up=self.stack_weights(f"{shared}.w1.weight", f"{shared}.w3.weight"),
            shared_down=self.weight(f"{shared}.w2.weight"),
            top_k=top_k,
        )

    def engram(self, prefix: str) -> EngramWeights:
        return EngramWeights(
            table=self.table(f"{prefix}.embed.weight"),
            projection=self.weight(f"{prefix}.wkv.weight"),
            query_key=self.wide(f"{prefix}.q_weight") * self.wide(f"{prefix}.k_weight"),
        )

    def block(self, prefix: str, role: LayerRole) -> BlockWeights:
        config = self._config
        count = config.dspark_n_routed_experts if role.is_draft else config.n_routed_experts
        top_k = config.dspark_num_experts_per_tok if role.is_draft else config.num_experts_per_tok
        return BlockWeights(
            attention_norm=self.wide(f"{prefix}.attn_norm.weight"),
            attention_mix=self.mix(f"{prefix}.hc_attn"),
            attention=self.attention(f"{prefix}.attn", role),
            ffn_norm=self.wide(f"{prefix}.ffn_norm.weight"),
            ffn_mix=self.mix(f"{prefix}.hc_ffn"),
            ffn=self.experts(f"{prefix}.ffn", count, top_k),
            engram=self.engram(f"{prefix}.engram") if role.has_engram else None,
        )

    def draft(self, roles: list[LayerRole]) -> DraftWeights:
        last = f"mtp.{len(roles) - 1}"
        return DraftWeights(
            main_projection=self.weight("mtp.0.main_proj.weight"),
            main_norm=self.wide("mtp.0.main_norm.weight"),
            norm=self.wide(f"{last}.norm.weight"),
            markov_embed=self.matrix(f"{last}.markov_head.embed.weight"),
            markov_head=self.matrix(f"{last}.markov_head.head.weight"),
            confidence=self.matrix(f"{last}.confidence_head.proj.weight"),
            blocks=tuple(self.block(f"mtp.{i}", role) for i, role in enumerate(roles)),
        )


@overload
def load_weights(
    config: ModelConfig, source: TensorSource, numerics: Numerics, device: torch.device
) -> ModelWeights: ...


@overload
def load_weights(
    config: ModelConfig,
    source: StoredSource,
    numerics: Numerics,
    device: torch.device,
    *,
    keep_quantized: bool,
) -> ModelWeights: ...


def load_weights(
    config: ModelConfig,
    source: TensorSource | StoredSource,
    numerics: Numerics,
    device: torch.device,
    *,
    keep_quantized: bool = False,
) -> ModelWeights:
    """Read every language-model tensor of `source` into the shapes above, on `device`.

    With `keep_quantized`, matrices stay as the checkpoint stores them (`QuantizedWeight`).
    """
    stored = cast(StoredSource, source) if keep_quantized else None
    loader = _Loader(config, source, numerics, device, stored)
    roles = layer_roles(config)
    trunk = [role for role in roles if not role.is_draft]
    drafts = [role for role in roles if role.is_draft]
    return ModelWeights(
        embed=loader.matrix("embed.weight"),
        head=loader.matrix("head.weight"),
        norm=loader.wide("norm.weight"),
        blocks=tuple(loader.block(f"layers.{role.layer_id}", role) for role in trunk),
        draft=loader.draft(drafts) if drafts else None,
    )


def weight_bytes(weights: object) -> int:
    """Memory of a weight, or of all weights of a model: payloads and scales where they stay quantized."""
    if isinstance(weights, Tensor):
        return weights.numel() * weights.element_size()
    if isinstance(weights, QuantizedWeight):
        return weights.nbytes
    if isinstance(weights, tuple):
        return sum(weight_bytes(part) for part in weights)
    if is_dataclass(weights):
        return sum(weight_bytes(getattr(weights, field.name)) for field in fields(weights))
    return 0
