"""Token-by-token generation with the training model: all sequences of a batch stand at the same position.

Only used to make text for the draft block, to measure, and to write samples. Every sequence has the same
prompt length, so a step is one row per sequence and caches are plain tensors indexed by position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stepahead.engine.model.v41.roles import LayerRole

from .arithmetic import Weights, multiply, rms_norm, rotate, wide
from .indexer import candidate_entries, choose, index_scores
from .memory import remember
from .model import TrainingModel

Sampler = Callable[[Tensor], Tensor]


def greedy(logits: Tensor) -> Tensor:
    return logits.argmax(-1)


def sampler(temperature: float, top_p: float = 1.0) -> Sampler:
    """Nucleus sampling."""

    def sample(logits: Tensor) -> Tensor:
        chances = (logits.float() / temperature).softmax(-1)
        if top_p < 1.0:
            ordered, order = chances.sort(dim=-1, descending=True)
            ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered > top_p, 0.0)
            chances = torch.zeros_like(chances).scatter_(-1, order, ordered)
        return torch.multinomial(chances, 1).squeeze(-1)

    return sample


@dataclass
class _Caches:
    windows: dict[int, Tensor]
    entries: dict[int, Tensor]
    index_keys: dict[int, Tensor]
    unfinished: dict[int, Tensor]  # values and gates of the last token at a ratio-2 source


class Decoder:
    """Generates with fixed weights."""

    def __init__(self, model: TrainingModel, weights: Weights) -> None:
        self.model, self.weights, self.config = model.plain(), weights, model.config

    @torch.no_grad()
    def generate(self, prompts: Tensor, length: int, choose_token: Sampler) -> Tensor:
        """Continue `[batch, prompt]` ids to `[batch, length]`."""
        batch, prompt = prompts.shape
        tokens = torch.zeros(batch, length, dtype=torch.long, device=prompts.device)
        tokens[:, :prompt] = prompts
        caches = self._caches(batch, length)
        for position in range(length - 1):
            hidden = self._step(tokens, position, caches)
            if position + 1 >= prompt:
                tokens[:, position + 1] = choose_token(self.model.logits(self.weights, hidden))
        return tokens

    def _caches(self, batch: int, length: int) -> _Caches:
        config = self.config
        dtype = self.weights["layers.0.attn.wkv.weight"].dtype

        def empty(count: int, dim: int) -> Tensor:
            return torch.zeros(batch, count, dim, dtype=dtype, device=self.model.device)

        sources = [r for r in self.model.roles if r.is_kv_source]
        return _Caches(
            windows={r.layer_id: empty(length, config.head_dim) for r in self.model.roles},
            entries={r.layer_id: empty(length // r.ratio, config.head_dim) for r in sources},
            index_keys={r.layer_id: empty(length // r.ratio, config.index_head_dim) for r in sources},
            unfinished={},
        )

    def _step(self, tokens: Tensor, position: int, caches: _Caches) -> Tensor:
        config, weights, model = self.config, self.weights, self.model
        batch = tokens.shape[0]
        streams = wide(functional.embedding(tokens[:, position], weights["embed.weight"]))
        streams = streams.unsqueeze(1).expand(-1, config.hc_mult, -1).contiguous()
        pre = torch.zeros(batch, config.hc_mult, device=tokens.device, dtype=streams.dtype)
        pre[:, 0] = 1.0
        shared: dict[str, Any] = {}
        for role in model.roles:
            prefix = f"layers.{role.layer_id}"
            if role.has_engram:
                streams = self._remember(role, prefix, tokens, position, streams)

            def attend(x: Tensor, role: LayerRole = role) -> Tensor:
                return self._attention(role, x, position, caches, shared)

            def feed_forward(x: Tensor, prefix: str = prefix) -> Tensor:
                return model.feed_forward(weights, prefix, x, config.num_experts_per_tok)[0]

            streams, pre = model.sublayer(weights, prefix, "attn", streams, pre, attend)
            streams, pre = model.sublayer(weights, prefix, "ffn", streams, pre, feed_forward)
        return (pre.unsqueeze(-1) * streams).sum(1)

    def _remember(
        self, role: LayerRole, prefix: str, tokens: Tensor, position: int, streams: Tensor
    ) -> Tensor:
        weights, start = self.weights, max(0, position - self.config.engram_max_ngram_size + 1)
        rows = self.model.memory.rows(tokens[:, start : position + 1], role.layer_id)[:, -1]
        projection = weights[f"{prefix}.engram.wkv.weight"]
        looked_up = (
            functional.embedding(rows, weights[f"{prefix}.engram.embed.weight"])
            .flatten(1)
            .to(projection.dtype)
        )
        memory = functional.linear(looked_up, projection).unflatten(-1, (self.config.hc_mult + 1, -1))
        query_weight, key_weight = weights[f"{prefix}.engram.q_weight"], weights[f"{prefix}.engram.k_weight"]
        return remember(streams, memory, query_weight, key_weight, self.config.rms_norm_eps)

    def _attention(
        self, role: LayerRole, inputs: Tensor, position: int, caches: _Caches, shared: dict[str, Any]
    ) -> Tensor:
        model, weights, prefix = self.model, self.weights, f"layers.{role.layer_id}"
        rows = inputs.unsqueeze(1)
        cos, sin = model.angles(role.ratio, position, position + 1)
        query, compressed, key = model.attention.queries(weights, prefix, rows, cos, sin)
        window = caches.windows[role.layer_id]
        window[:, position] = key[:, 0]
        keys = window[:, max(0, position - self.config.sliding_window + 1) : position + 1]
        allowed = torch.ones(keys.shape[:2], dtype=torch.bool, device=keys.device)
        if role.ratio:
            if role.is_kv_source:
                self._store(role, prefix, rows, position, caches)
            count = (position + 1) // role.ratio
            entries = caches.entries[role.kv_source or 0][:, :count]
            if role.is_index_source:
                shared["chosen"] = self._select(role, prefix, rows, compressed, position, caches, shared)
            keys = torch.cat((keys, entries), dim=1)
            allowed = torch.cat((allowed, shared["chosen"][:, :count]), dim=1)
        result = attend_row(query[:, 0], keys, allowed, weights[f"{prefix}.attn.attn_sink"])
        return model.attention.output(weights, prefix, result.unsqueeze(1), cos, sin)

    def _store(self, role: LayerRole, prefix: str, rows: Tensor, position: int, caches: _Caches) -> None:
        """Finish a compressed entry when its last token arrives."""
        name, ratio, layer = f"{prefix}.attn.compressor", role.ratio, role.layer_id
        values = multiply(rows[:, 0], self.weights[f"{name}.wkv.weight"])
        if ratio > 1:
            gates = multiply(rows[:, 0], self.weights[f"{name}.wgate.weight"])
            current = torch.stack((wide(values), wide(gates)), dim=0)
            if (position + 1) % ratio:
                caches.unfinished[layer] = current
                return
            both = torch.stack((caches.unfinished[layer], current), dim=2)
            values = (both[1].softmax(1) * both[0]).sum(1).to(rows.dtype)
        latent = rms_norm(values, self.weights[f"{name}.norm.weight"], self.config.rms_norm_eps).to(
            rows.dtype
        )
        entry, start = position // ratio, position // ratio * ratio
        cos, sin = self.model.angles(ratio, start, start + 1)
        caches.entries[layer][:, entry] = rotate(latent, cos[0], sin[0])
        caches.index_keys[layer][:, entry] = self.model.attention.index_keys(
            self.weights, prefix, latent, cos[0], sin[0]
        )

    def _select(
        self, role: LayerRole, prefix: str, rows: Tensor, compressed: Tensor, position: int, caches: _Caches,
        shared: dict[str, Any],
    ) -> Tensor:  # fmt: skip
        count = (position + 1) // role.ratio
        cos, sin = self.model.angles(role.ratio, position, position + 1)
        query, head_weights = self.model.attention.index_queries(
            self.weights, prefix, rows, compressed, cos, sin
        )
        keys = caches.index_keys[role.index_k_source or 0][:, :count]
        if count == 0:
            return torch.zeros(rows.shape[0], 0, dtype=torch.bool, device=rows.device)
        scores = index_scores(query, keys, head_weights)
        if role.uses_candidates and "candidates" in shared:
            scores = scores.masked_fill(~shared["candidates"], -torch.inf)
        if role.is_candidate_source:
            visible = torch.ones(1, 1, count, dtype=torch.bool, device=rows.device)
            shared["candidates"] = candidate_entries(self.config, scores, visible)
        return choose(scores, self.config.index_topk)[:, 0]


def attend_row(query: Tensor, keys: Tensor, allowed: Tensor, sink: Tensor) -> Tensor:
    """One row per sequence: `[batch, heads, dim]` queries over `[batch, keys, dim]`."""
    scores = wide(query @ keys.mT) * query.shape[-1] ** -0.5
    scores = scores.masked_fill(~allowed.unsqueeze(1), -1e30)
    top = torch.maximum(scores.amax(-1), sink)
    weights = torch.exp(scores - top.unsqueeze(-1))
    total = weights.sum(-1) + torch.exp(sink - top)
    return ((weights / total.unsqueeze(-1)).to(query.dtype)) @ keys
