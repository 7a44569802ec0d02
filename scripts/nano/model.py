"""The training forward: whole sequences of one length, differentiable, the same function as the engine's.

The engine gathers each row's own keys, which suits decoding and mixed batches and is slow to differentiate.
Here all sequences have the same length, and every gather is a mask or a matrix product. A test holds both
forwards equal. Rows are `[batch, length]`, flattened to one row dimension wherever no order matters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.roles import LayerRole, layer_roles

from .angles import Angles
from .arithmetic import Weights, rms_norm, wide
from .attention import Attention, Shared
from .compiled import Calls
from .memory import Memory
from .sinkhorn import sinkhorn


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


class TrainingModel:
    """The trunk. Weights are passed to every call, so that casting and rounding are the caller's business."""

    def __init__(
        self, config: ModelConfig, token_map: np.ndarray, device: torch.device, *, length: int,
        compiled: bool = False, wide_type: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.config = config
        self.roles = [r for r in layer_roles(config) if not r.is_draft]
        self.device = device
        self.memory = Memory(config, token_map, device)
        self.length = length
        self.angles = Angles(config, length + config.dspark_block_size + 1, device, wide_type)
        self._use(Calls(compiled))

    def _use(self, call: Calls) -> None:
        self.call = call
        self.attention = Attention(self.config, self.angles, call)

    def plain(self) -> TrainingModel:
        """The same model without compilation: for shapes that occur once, and where the compiler fails."""
        other = copy.copy(self)
        other._use(Calls(False))
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
        state = Shared(dense=dense, train=train)
        features, balance = [], []
        for role in self.roles:
            prefix = f"layers.{role.layer_id}"
            if role.has_engram:
                streams = self._remember(weights, prefix, role, tokens, streams, compute)
            if role.feeds_draft:
                features.append(streams.mean(1).view(batch, length, -1))

            def attend(x: Tensor, role: LayerRole = role) -> Tensor:
                return self.attention.layer(weights, role, x, state, batch)

            def feed_forward(x: Tensor, prefix: str = prefix) -> Tensor:
                y, load, penalty = self.feed_forward(weights, prefix, x, config.num_experts_per_tok)
                outputs.loads[prefix] = load
                balance.append(penalty)
                return y

            streams, pre = self.sublayer(weights, prefix, "attn", streams, pre, attend)
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
        result: Tensor = self.call.remember(
            streams, memory, query_weight, key_weight, self.config.rms_norm_eps
        )
        return result
