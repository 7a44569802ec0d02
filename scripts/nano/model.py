"""The training forward: whole sequences of one length, differentiable, the same function as the engine's.

The engine gathers each row's own keys, which suits decoding and mixed batches and is slow to differentiate. Here all
sequences have the same length, so windows become two adjacent chunks, selections become dense masks, and all
experts multiply all rows with a routing weight that is zero where an expert was not chosen (16 experts of width 64
are one ordinary matrix product; sorting rows would cost more than it saves). A test holds both forwards equal.

Rows are `[batch, length]`, flattened to one row dimension wherever no order matters. Matrices arrive in the compute
type, streams, norms, mixes, routing and softmax stay in float32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stepahead.devices.kernels.reference.rotary import plain_frequencies, yarn_frequencies
from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.engram_tables import engram_tables
from stepahead.engine.model.v41.roles import LayerRole, layer_roles

from .sinkhorn import sinkhorn

Weights = Mapping[str, Tensor]
_NEVER = -1e30


@dataclass
class Outputs:
    """What a forward returns besides the final hidden states."""

    hidden: Tensor  # [rows, dim], before the final norm
    features: Tensor | None  # [batch, length, 3 * dim], the draft block's inputs
    loads: dict[str, Tensor] = field(default_factory=dict)  # per layer: share of the rows each expert got
    balance_loss: Tensor | None = None
    index_loss: Tensor | None = None
    selected: dict[int, Tensor] = field(
        default_factory=dict
    )  # per index source: [batch, length, entries] bool


def wide(x: Tensor) -> Tensor:
    """At least float32; float64, in which tests compare, stays."""
    return x if x.dtype == torch.float64 else x.float()


def multiply(x: Tensor, weight: Tensor) -> Tensor:
    """`x @ weight^T` in the weight's type: matrices stored in float32 keep it while activations are narrower."""
    return functional.linear(x.to(weight.dtype), weight)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y = wide(x)
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the last dimensions; `cos` and `sin` are `[..., pairs]` and broadcast over the leading dimensions."""
    rotary = 2 * cos.shape[-1]
    plain, turned = x.split([x.shape[-1] - rotary, rotary], dim=-1)
    a, b = wide(turned).unflatten(-1, (-1, 2)).unbind(-1)
    pairs = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((plain, pairs.to(x.dtype)), dim=-1)


def open_sublayer(
    streams: Tensor, pre: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm: Tensor, eps: float, hc_eps: float,
    compute: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(normed input, next pre, post, comb logits) from `[rows, copies, dim]` streams (model_spec 2.2)."""
    rows, copies, _ = streams.shape
    flat = streams.flatten(1)
    raw = (flat @ fn.t()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + eps)
    pre_raw, post_raw, comb_raw = raw.split([copies, copies, copies * copies], dim=-1)
    pre_base, post_base, comb_base = base.split([copies, copies, copies * copies])
    pre_out = torch.sigmoid(scale[0] * pre_raw + pre_base) + hc_eps
    post = 2 * torch.sigmoid(scale[1] * post_raw + post_base)
    comb = (scale[2] * comb_raw + comb_base).view(rows, copies, copies)
    mixed = (pre.unsqueeze(-1) * streams).sum(1)
    return rms_norm(mixed, norm, eps).to(compute), pre_out, post, comb


def close_sublayer(output: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    mixed = (comb.unsqueeze(-1) * streams.unsqueeze(2)).sum(1)
    return mixed + post.unsqueeze(-1) * wide(output).unsqueeze(1)


def project(
    inputs: Tensor, wq_a: Tensor, q_norm: Tensor, wq_b: Tensor, wkv: Tensor, kv_norm: Tensor,
    cos: Tensor, sin: Tensor, heads: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Queries `[batch, length, heads, dim]`, their compressed form, and window keys; both rotated."""
    compressed = rms_norm(functional.linear(inputs, wq_a), q_norm, eps)
    query = functional.linear(compressed, wq_b).unflatten(-1, (heads, -1))
    keys = rms_norm(functional.linear(inputs, wkv), kv_norm, eps)
    return rotate(query, cos.unsqueeze(-2), sin.unsqueeze(-2)), compressed, rotate(keys, cos, sin)


def attend(
    query: Tensor, keys: Tensor, entries: Tensor | None, chosen: Tensor | None, visible: Tensor | None,
    sink: Tensor, window: int,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """One softmax over the window, the chosen entries and the sink (model_spec 2.5).

    Also returns how much attention the heads together would pay to every visible entry if all were chosen,
    `[batch, length, entries]`: what the indexer learns to predict.
    """
    batch, length, heads, dim = query.shape
    scale = dim**-0.5
    chunks = length // window
    own = keys.view(batch, chunks, window, dim)
    pairs = torch.cat((functional.pad(own, (0, 0, 0, 0, 1, 0))[:, :-1], own), dim=2)
    rows = query.reshape(batch, chunks, window * heads, dim)
    near = wide(rows @ pairs.mT).view(batch, chunks, window, heads, 2 * window) * scale
    row = torch.arange(window, device=query.device).view(1, window, 1, 1)
    slot = torch.arange(2 * window, device=query.device).view(1, 1, 1, 2 * window)
    chunk = torch.arange(chunks, device=query.device).view(chunks, 1, 1, 1)
    allowed = (slot > row) & (slot <= row + window) & ((slot >= window) | (chunk > 0))
    near = near.masked_fill(~allowed, _NEVER).view(batch, length, heads, 2 * window)
    top = torch.maximum(near.amax(-1), sink)
    if entries is None or chosen is None or visible is None:
        top = top.detach()
        weights = torch.exp(near - top.unsqueeze(-1))
        total = weights.sum(-1) + torch.exp(sink - top)
        near_weights = (weights / total.unsqueeze(-1)).to(query.dtype)
        result = near_weights.view(batch, chunks, window * heads, 2 * window) @ pairs
        return result.view(batch, length, heads, dim), None
    raw = wide(query.reshape(batch, length * heads, dim) @ entries.mT).view(batch, length, heads, -1) * scale
    far = raw.masked_fill(~chosen.unsqueeze(2), _NEVER)
    top = torch.maximum(top, far.amax(-1)).detach()
    weights, far_weights = torch.exp(near - top.unsqueeze(-1)), torch.exp(far - top.unsqueeze(-1))
    total = (weights.sum(-1) + far_weights.sum(-1) + torch.exp(sink - top)).unsqueeze(-1)
    near_weights = (weights / total).to(query.dtype).view(batch, chunks, window * heads, 2 * window)
    far_product = (far_weights / total).to(query.dtype).view(batch, length * heads, -1) @ entries
    result = (near_weights @ pairs).view(batch, length, heads, dim) + far_product.view(
        batch, length, heads, dim
    )
    wanted = torch.exp((raw.detach() - top.unsqueeze(-1)).clamp(max=20.0)) / total.detach()
    return result, wanted.sum(2).masked_fill(~visible, 0.0)


def project_output(
    result: Tensor, cos: Tensor, sin: Tensor, wo_a: Tensor, wo_b: Tensor, groups: int
) -> Tensor:
    """Un-rotate by the query position, then the grouped low-rank output projection."""
    result = rotate(result, cos.unsqueeze(-2), -sin.unsqueeze(-2))
    grouped = result.flatten(-2).unflatten(-1, (groups, -1)).movedim(-2, 0)
    grouped = grouped.reshape(groups, -1, grouped.shape[-1])
    low = (grouped @ wo_a.view(groups, -1, grouped.shape[-1]).mT).movedim(0, 1).flatten(1)
    return functional.linear(low, wo_b)


def route(
    inputs: Tensor, gate: Tensor, bias: Tensor, top_k: int, scaling: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Routing weights `[rows, experts]` (zero where not chosen), load per expert, and a balance penalty."""
    scores = functional.softplus(wide(inputs) @ gate.t()).sqrt()
    wanted, mask = scores.detach() + bias, torch.zeros_like(scores)
    for _ in range(top_k):  # two passes over 16 columns fuse with their neighbours; a sort would not
        best = functional.one_hot(wanted.argmax(-1), scores.shape[1]).to(scores.dtype)
        mask, wanted = mask + best, wanted - best * 1e9
    picked = scores * mask
    weights = picked * (scaling / (picked.sum(-1, keepdim=True) + 1e-20))
    load = mask.mean(0) / top_k
    share = (scores / scores.sum(-1, keepdim=True)).mean(0)
    return weights, load, scores.shape[1] * (load * share).sum()


def experts(
    inputs: Tensor, weights: Tensor, w1: Tensor, w3: Tensor, w2: Tensor,
    s1: Tensor, s3: Tensor, s2: Tensor, limit: float,
) -> Tensor:  # fmt: skip
    """All experts on all rows, routing weight before the last product, plus the shared expert."""
    width = w1.shape[1]
    up_weight = torch.cat((w3.flatten(0, 1), s3))
    gate_weight = torch.cat((w1.flatten(0, 1), s1))
    gated = functional.silu(functional.linear(inputs, gate_weight).clamp(max=limit))
    hidden = gated * functional.linear(inputs, up_weight).clamp(-limit, limit)
    spread = weights.to(hidden.dtype).repeat_interleave(width, dim=1)
    hidden = hidden * torch.cat((spread, spread.new_ones(spread.shape[0], s1.shape[0])), dim=1)
    down = torch.cat((w2.movedim(0, 1).flatten(1), s2), dim=1)
    return functional.linear(hidden, down)


def remember(streams: Tensor, memory: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float) -> Tensor:
    """Add the gated Engram memory (model_spec 2.11); `memory` is `[rows, copies + 1, dim]`."""
    keys, value = wide(memory[:, :-1]), wide(memory[:, -1:])
    dot = (streams * (query_weight * key_weight) * keys).sum(-1, keepdim=True) * streams.shape[-1] ** -0.5
    dot = dot * torch.rsqrt(streams.square().mean(-1, keepdim=True) + eps)
    dot = dot * torch.rsqrt(keys.square().mean(-1, keepdim=True) + eps)
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))
    return streams + gate * value


def index_scores(query: Tensor, keys: Tensor, head_weights: Tensor) -> Tensor:
    """`[batch, length, entries]` from `[batch, length, heads, dim]` queries and `[batch, entries, dim]` keys."""
    batch, length, heads, dim = query.shape
    dots = (query.reshape(batch, length * heads, dim) @ keys.mT).view(batch, length, heads, -1)
    return (wide(dots.relu()) * wide(head_weights).unsqueeze(-1)).sum(2)


def index_loss(scores: Tensor, wanted: Tensor, visible: Tensor) -> Tensor:
    """Cross entropy of the indexer against the attention paid, weighted by how much attention there was."""
    total = wanted.sum(-1, keepdim=True)
    logs = scores.masked_fill(~visible, _NEVER).log_softmax(-1)
    target = wanted / (total + 1e-9)
    entropy = -(target * (target + 1e-9).log()).sum(-1)
    return ((-(target * logs.clamp(min=-50.0)).sum(-1) - entropy) * (total.squeeze(-1) > 1e-6)).mean()


COMPILED = (
    open_sublayer, close_sublayer, project, attend, project_output, route, experts, remember, index_scores,
    index_loss,
)  # fmt: skip


class Memory:
    """Table rows of every token of a batch, from the hashed n-grams (model_spec 2.11)."""

    def __init__(self, config: ModelConfig, token_map: np.ndarray, device: torch.device) -> None:
        self._map = torch.as_tensor(token_map.astype(np.int64), device=device)
        self._pad = int(token_map[config.engram_pad_token_id])
        self._tables = {t.layer_id: t for t in engram_tables(config)}
        self._span = config.engram_max_ngram_size

    def rows(self, tokens: Tensor, layer_id: int) -> Tensor:
        """`[batch, length, rows per token]` for `[batch, length]` token ids."""
        table = self._tables[layer_id]
        compressed = self._map[tokens]
        padded = functional.pad(compressed, (self._span - 1, 0), value=self._pad)
        length = tokens.shape[1]
        running = compressed * table.multipliers[0]
        rows = []
        heads = len(table.primes) // (self._span - 1)
        for distance in range(1, self._span):
            start = self._span - 1 - distance
            running = running ^ (padded[:, start : start + length] * table.multipliers[distance])
            for head in range(heads):
                place = (distance - 1) * heads + head
                rows.append(running % table.primes[place] + table.offsets[place])
        return torch.stack(rows, dim=-1)


class TrainingModel:
    """The trunk. Weights are passed to every call, so that casting and rounding are the caller's business."""

    def __init__(
        self, config: ModelConfig, token_map: np.ndarray, device: torch.device, *, length: int, compiled: bool = False,
        wide_type: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.config = config
        self.roles = [r for r in layer_roles(config) if not r.is_draft]
        self.device = device
        self.memory = Memory(config, token_map, device)
        self.length, self.wide_type = length, wide_type
        self._angles = {
            kind: self._table(kind, length + config.dspark_block_size + 1) for kind in (False, True)
        }
        self.call = _Calls(compiled)

    def _table(self, compressed: bool, length: int) -> tuple[Tensor, Tensor]:
        config, scaling = self.config, self.config.rope_scaling
        rotary = config.qk_rope_head_dim
        if not compressed:
            frequencies = plain_frequencies(config.rope_theta, rotary)
        elif scaling is None:
            frequencies = plain_frequencies(config.compress_rope_theta, rotary)
        else:
            frequencies = yarn_frequencies(
                config.compress_rope_theta, rotary, factor=scaling.factor, beta_fast=scaling.beta_fast,
                beta_slow=scaling.beta_slow, original_length=scaling.original_max_position_embeddings,
            )  # fmt: skip
        positions = torch.arange(length, dtype=torch.float64)
        angles = positions[:, None] * torch.tensor(frequencies, dtype=torch.float64)
        return angles.cos().to(self.device, self.wide_type), angles.sin().to(self.device, self.wide_type)

    def angles(
        self, ratio: int, start: int = 0, stop: int | None = None, step: int = 1
    ) -> tuple[Tensor, Tensor]:
        cos, sin = self._angles[ratio > 0]
        return cos[start:stop:step], sin[start:stop:step]

    def plain(self) -> TrainingModel:
        """The same model without compilation: for shapes that occur once, and where the compiler fails."""
        other = copy.copy(self)
        other.call = _Calls(False)
        return other

    def forward(
        self, weights: Weights, tokens: Tensor, *, dense: bool = False, train: bool = True
    ) -> Outputs:
        """Run all layers on `[batch, length]` tokens. With `dense` every visible entry is attended to."""
        config = self.config
        batch, length = tokens.shape
        compute = weights["layers.0.attn.wkv.weight"].dtype
        embedded = wide(functional.embedding(tokens, weights["embed.weight"])).flatten(0, 1)
        streams = embedded.unsqueeze(1).expand(-1, config.hc_mult, -1)
        pre = functional.one_hot(torch.zeros(1, dtype=torch.long, device=tokens.device), config.hc_mult)
        pre = pre.to(embedded.dtype).expand(batch * length, -1)
        outputs = Outputs(hidden=embedded, features=None)
        state = _Shared(dense=dense, train=train)
        features, balance = [], []
        for role in self.roles:
            prefix = f"layers.{role.layer_id}"
            if role.has_engram:
                streams = self._remember(weights, prefix, role, tokens, streams, compute)
            if role.feeds_draft:
                features.append(streams.mean(1).view(batch, length, -1))
            streams, pre = self.sublayer(
                weights,
                prefix,
                "attn",
                streams,
                pre,
                lambda x, r=role: self._attention(weights, r, x, state, batch),
            )

            def feed_forward(x: Tensor, prefix: str = prefix) -> Tensor:
                y, load, penalty = self.feed_forward(weights, prefix, x, config.num_experts_per_tok)
                outputs.loads[prefix] = load
                balance.append(penalty)
                return y

            streams, pre = self.sublayer(weights, prefix, "ffn", streams, pre, feed_forward)
        outputs.hidden = (pre.unsqueeze(-1) * streams).sum(1)
        if features:
            outputs.features = torch.cat(features, dim=-1)
        outputs.balance_loss = torch.stack(balance).mean()
        if train:
            outputs.index_loss = state.loss(self.call)
        outputs.selected = state.selected
        return outputs

    def logits(self, weights: Weights, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, weights["norm.weight"], self.config.rms_norm_eps)
        return functional.linear(normed.to(weights["head.weight"].dtype), weights["head.weight"])

    def sublayer(
        self,
        weights: Weights,
        prefix: str,
        kind: str,
        streams: Tensor,
        pre: Tensor,
        body: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, Tensor]:
        config = self.config
        fn, base, scale = (weights[f"{prefix}.hc_{kind}_{part}"] for part in ("fn", "base", "scale"))
        norm = weights[f"{prefix}.{kind}_norm.weight"]
        compute = weights[f"{prefix}.attn.wkv.weight"].dtype
        inputs, pre_out, post, comb_logits = self.call.open_sublayer(
            streams, pre, fn, base, scale, norm, config.rms_norm_eps, config.hc_eps, compute
        )
        comb = sinkhorn(comb_logits, config.hc_sinkhorn_iters, config.hc_eps)
        return self.call.close_sublayer(body(inputs), streams, post, comb), pre_out

    def feed_forward(
        self, weights: Weights, prefix: str, inputs: Tensor, top_k: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        config = self.config
        gate, bias = weights[f"{prefix}.ffn.gate.weight"], weights[f"{prefix}.ffn.gate.bias"]
        routed, load, penalty = self.call.route(inputs, gate, bias, top_k, config.routed_scaling_factor)
        matrices = [
            weights[f"{prefix}.ffn.{g}.{w}.weight"]
            for g in ("experts", "shared_experts")
            for w in ("w1", "w3", "w2")
        ]
        return self.call.experts(inputs, routed, *matrices, config.swiglu_limit), load, penalty

    def _remember(
        self,
        weights: Weights,
        prefix: str,
        role: LayerRole,
        tokens: Tensor,
        streams: Tensor,
        compute: torch.dtype,
    ) -> Tensor:
        rows = self.memory.rows(tokens, role.layer_id).flatten(0, 1)
        looked_up = (
            functional.embedding(rows, weights[f"{prefix}.engram.embed.weight"]).flatten(1).to(compute)
        )
        memory = functional.linear(looked_up, weights[f"{prefix}.engram.wkv.weight"])
        memory = memory.unflatten(-1, (self.config.hc_mult + 1, -1))
        query_weight, key_weight = weights[f"{prefix}.engram.q_weight"], weights[f"{prefix}.engram.k_weight"]
        return self.call.remember(streams, memory, query_weight, key_weight, self.config.rms_norm_eps)

    def queries(self, weights: Weights, prefix: str, inputs: Tensor, cos: Tensor, sin: Tensor) -> Any:
        parts = [weights[f"{prefix}.attn.{n}.weight"] for n in ("wq_a", "q_norm", "wq_b", "wkv", "kv_norm")]
        config = self.config
        return self.call.project(inputs, *parts, cos, sin, config.num_attention_heads, config.rms_norm_eps)

    def output(self, weights: Weights, prefix: str, result: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        wo_a, wo_b = weights[f"{prefix}.attn.wo_a.weight"], weights[f"{prefix}.attn.wo_b.weight"]
        return self.call.project_output(result, cos, sin, wo_a, wo_b, self.config.o_groups)

    def _attention(
        self, weights: Weights, role: LayerRole, inputs: Tensor, state: _Shared, batch: int
    ) -> Tensor:
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
        """Latents before rotation (for the indexer) and entries: `[batch, length / ratio, dim]` (model_spec 2.6)."""
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
        self, weights: Weights, role: LayerRole, inputs: Tensor, compressed: Tensor, state: _Shared
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


def visible_entries(length: int, count: int, ratio: int, device: torch.device) -> Tensor:
    """Whether entry j ends at or before position p: `[1, length, count]` bool."""
    ends = (torch.arange(length, device=device) + 1) // ratio
    return (torch.arange(count, device=device) < ends[:, None]).unsqueeze(0)


def choose(scores: Tensor, count: int) -> Tensor:
    """Mask of the `count` best entries of every row; entries at -inf are never chosen; lower entries win ties."""
    if scores.shape[-1] <= count:
        return scores > -torch.inf
    if scores.is_cuda:
        best = scores.topk(count, dim=-1, sorted=False).indices
    else:
        best = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores, dtype=torch.bool).scatter_(-1, best, True) & (scores > -torch.inf)


def candidate_entries(config: ModelConfig, scores: Tensor, visible: Tensor) -> Tensor:
    """Entries of the best blocks; the block of the newest visible entry is always one (model_spec 2.7)."""
    block, entries = config.candidate_block_size, scores.shape[-1]
    padded = functional.pad(scores, (0, -entries % block), value=-torch.inf)
    best = padded.unflatten(-1, (-1, block)).amax(-1)
    newest = (visible.sum(-1) - 1) // block
    numbers = torch.arange(best.shape[-1], device=scores.device)
    best = best.masked_fill(numbers == newest.unsqueeze(-1), torch.inf)
    return choose(best, config.candidate_topk_blocks).repeat_interleave(block, dim=-1)[..., :entries]


@dataclass
class _Shared:
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


class _Calls:
    """The functions above by name, compiled one by one or as they are."""

    def __init__(self, compiled: bool) -> None:
        for function in COMPILED:
            setattr(self, function.__name__, torch.compile(function, dynamic=False) if compiled else function)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(name)
