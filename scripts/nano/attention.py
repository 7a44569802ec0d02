"""Attention of the trunk, layer by layer, with what layers hand to the layers above them.

Entries and selections are computed where a layer is their source and reused above it (model_spec 2.6 to
2.8).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.roles import LayerRole

from .angles import Angles
from .arithmetic import Weights, multiply, rms_norm, rotate, wide
from .compiled import Calls
from .indexer import candidate_entries, choose, visible_entries


@dataclass
class Shared:
    """What attention layers hand to the layers above them."""

    dense: bool
    train: bool
    latent: Any = None
    entries: Any = None
    visible: Any = None
    index_keys: Any = None
    scores: Any = None
    chosen: Any = None
    candidates: Any = None
    wanted: Any = None
    losses: list[Tensor] = field(default_factory=list)
    selected: dict[int, Tensor] = field(default_factory=dict)
    pending_visible: Any = None

    def close_group(self, call: Any) -> None:
        """The layers that shared one selection are done: compare it with the attention they paid."""
        if self.train and self.scores is not None and self.wanted is not None:
            self.losses.append(call.index_loss(self.scores, self.wanted, self.pending_visible))
        self.wanted = None
        self.pending_visible = self.visible

    def loss(self, call: Any) -> Tensor | None:
        self.close_group(call)
        return torch.stack(self.losses).mean() if self.losses else None


class Attention:
    """The attention of any layer; its weights are passed to every call."""

    def __init__(self, config: ModelConfig, angles: Angles, call: Calls) -> None:
        self.config, self.angles, self.call = config, angles, call

    def queries(self, weights: Weights, prefix: str, inputs: Tensor, cos: Tensor, sin: Tensor) -> Any:
        parts = [weights[f"{prefix}.attn.{n}.weight"] for n in ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm")]
        config = self.config
        return self.call.project(inputs, *parts, cos, sin, config.num_attention_heads, config.rms_norm_eps)

    def output(self, weights: Weights, prefix: str, result: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        wo_a, wo_b = weights[f"{prefix}.attn.wo_a.weight"], weights[f"{prefix}.attn.wo_b.weight"]
        projected: Tensor = self.call.project_output(result, cos, sin, wo_a, wo_b, self.config.o_groups)
        return projected

    def layer(self, weights: Weights, role: LayerRole, inputs: Tensor, state: Shared, batch: int) -> Tensor:
        prefix, config = f"layers.{role.layer_id}", self.config
        by_sequence = inputs.view(batch, -1, inputs.shape[-1])
        length = by_sequence.shape[1]
        cos, sin = self.angles(role.ratio, 0, length)
        query, compressed, keys = self.queries(weights, prefix, by_sequence, cos, sin)
        if role.ratio:
            if role.is_kv_source:
                state.latent, state.entries = self.compress(weights, prefix, role, by_sequence)
                state.visible = visible_entries(length, state.entries.shape[1], role.ratio, inputs.device)
            if role.is_index_source:
                state.close_group(self.call)
                self._select(weights, role, by_sequence, compressed, state)
        chosen = state.chosen
        if state.dense and role.is_index_source:
            chosen = state.chosen = state.visible.expand(batch, -1, -1).contiguous()
        entries = state.entries if role.ratio else None
        sink = weights[f"{prefix}.attn.attn_sink"]
        result, wanted = self.call.attend(
            query, keys, entries, chosen if role.ratio else None, state.visible if role.ratio else None,
            sink, config.sliding_window,
        )  # fmt: skip
        if wanted is not None:
            state.wanted = wanted if state.wanted is None else state.wanted + wanted
        return self.output(weights, prefix, result, cos, sin)

    def compress(
        self, weights: Weights, prefix: str, role: LayerRole, inputs: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Latents before rotation and entries: `[batch, length / ratio, dim]` (model_spec 2.6)."""
        name = f"{prefix}.attn.compressor"
        values = multiply(inputs, weights[f"{name}.wkv.weight"])
        if role.ratio > 1:
            gates = wide(multiply(inputs, weights[f"{name}.wgate.weight"]))
            share = gates.unflatten(1, (-1, role.ratio)).softmax(2)
            values = (share * wide(values).unflatten(1, (-1, role.ratio))).sum(2).to(inputs.dtype)
        latent = rms_norm(values, weights[f"{name}.norm.weight"], self.config.rms_norm_eps).to(inputs.dtype)
        cos, sin = self.angles(role.ratio, 0, inputs.shape[1], role.ratio)
        return latent, rotate(latent, cos, sin)

    def index_keys(self, weights: Weights, prefix: str, latent: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        keys = functional.linear(latent, weights[f"{prefix}.attn.indexer.wk.weight"])
        norm = weights[f"{prefix}.attn.indexer.k_norm.weight"]
        return rotate(rms_norm(keys, norm, self.config.rms_norm_eps), cos, sin)

    def index_queries(
        self, weights: Weights, prefix: str, inputs: Tensor, compressed: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        config, name = self.config, f"{prefix}.attn.indexer"
        query = functional.linear(compressed, weights[f"{name}.wq_b.weight"]).unflatten(
            -1, (config.index_n_heads, -1)
        )
        factor = config.index_head_dim**-0.5 * config.index_n_heads**-0.5
        head_weights = functional.linear(inputs, weights[f"{name}.weights_proj.weight"]) * factor
        return rotate(query, cos.unsqueeze(-2), sin.unsqueeze(-2)), head_weights

    def _select(
        self, weights: Weights, role: LayerRole, inputs: Tensor, compressed: Tensor, state: Shared
    ) -> None:
        """The indexer learns from its own loss alone: nothing flows back into the trunk."""
        prefix, length = f"layers.{role.layer_id}", inputs.shape[1]
        if role.is_index_k_source:
            cos, sin = self.angles(role.ratio, 0, length, role.ratio)
            state.index_keys = self.index_keys(weights, prefix, state.latent.detach(), cos, sin)
        cos, sin = self.angles(role.ratio, 0, length)
        query, head_weights = self.index_queries(
            weights, prefix, inputs.detach(), compressed.detach(), cos, sin
        )
        state.scores = self.call.index_scores(query, state.index_keys, head_weights)
        with torch.no_grad():
            scores = state.scores.masked_fill(~state.visible, -torch.inf)
            if role.uses_candidates and state.candidates is not None:
                scores = scores.masked_fill(~state.candidates, -torch.inf)
            if role.is_candidate_source:
                state.candidates = candidate_entries(self.config, scores, state.visible)
            state.chosen = choose(scores, self.config.index_topk)
            state.selected[role.layer_id] = state.chosen
