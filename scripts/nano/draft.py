"""The draft block in training form: many anchors of many sequences at once (model_spec 3).

An anchor `a` is a position the target has processed; the block then sees the newest token at `a + 1` and
noise at the four places after it. All blocks of a batch are independent rows, because none reads another
one's keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from .arithmetic import Weights, multiply, rms_norm, rotate, wide
from .model import TrainingModel


class DraftModel:
    """The layers `mtp.*` over a trunk's features; embedding and head are the trunk's."""

    def __init__(self, trunk: TrainingModel) -> None:
        self.trunk = trunk
        self.config = trunk.config
        self.block = trunk.config.dspark_block_size
        self.stages = trunk.config.num_nextn_predict_layers
        self.last = f"mtp.{self.stages - 1}"

    def main_keys(self, weights: Weights, features: Tensor) -> list[Tensor]:
        """Keys of every stage at every position, `[batch, length, dim]`, from the trunk's features."""
        eps, projection = self.config.rms_norm_eps, weights["mtp.0.main_proj.weight"]
        mixed = functional.linear(features.to(projection.dtype), projection)
        mixed = rms_norm(mixed, weights["mtp.0.main_norm.weight"], eps)
        cos, sin = self.trunk.angles(0, 0, features.shape[1])
        keys = []
        for stage in range(self.stages):
            name = f"mtp.{stage}.attn"
            key = rms_norm(
                functional.linear(mixed, weights[f"{name}.wkv.weight"]),
                weights[f"{name}.kv_norm.weight"],
                eps,
            )
            keys.append(rotate(key, cos, sin))
        return keys

    def hidden(
        self, weights: Weights, main_keys: list[Tensor], newest: Tensor, anchors: Tensor
    ) -> tuple[Tensor, list[Tensor], dict[str, Tensor]]:
        """Hidden states `[batch, anchors, block, dim]` before the norm, balance penalties, expert loads.

        `newest` and `anchors` are `[batch, anchors]`: the token at `anchor + 1` and the anchor itself.
        """
        config, block = self.config, self.block
        batch, count = anchors.shape
        tokens = torch.full((batch, count, block), config.dspark_noise_token_id, device=anchors.device)
        tokens[..., 0] = newest
        places = anchors.unsqueeze(-1) + 1 + torch.arange(block, device=anchors.device)
        cos, sin = (table[places].view(batch * count, block, -1) for table in self.trunk.angles(0))
        history = anchors.unsqueeze(-1) - torch.arange(
            config.sliding_window - 1, -1, -1, device=anchors.device
        )
        missing = (history < 0).view(batch * count, -1)
        history = history.clamp(min=0)
        streams = wide(functional.embedding(tokens, weights["embed.weight"])).flatten(0, 2)
        streams = streams.unsqueeze(1).expand(-1, config.hc_mult, -1)
        pre = functional.one_hot(torch.zeros(1, dtype=torch.long, device=anchors.device), config.hc_mult)
        pre = pre.to(streams.dtype).expand(batch * count * block, -1)
        penalties: list[Tensor] = []
        loads: dict[str, Tensor] = {}
        row = torch.arange(batch, device=anchors.device).view(-1, 1, 1)
        for stage in range(self.stages):
            prefix = f"mtp.{stage}"
            window = main_keys[stage][row, history].flatten(0, 1)

            def attention(x: Tensor, prefix: str = prefix, window: Tensor = window) -> Tensor:
                rows = x.view(batch * count, block, -1)
                query, _, own = self.trunk.attention.queries(weights, prefix, rows, cos, sin)
                sink = weights[f"{prefix}.attn.attn_sink"]
                result = attend_block(query, torch.cat((window, own), dim=1), missing, sink)
                return self.trunk.attention.output(weights, prefix, result, cos, sin)

            def feed_forward(x: Tensor, prefix: str = prefix) -> Tensor:
                y, load, penalty = self.trunk.feed_forward(
                    weights, prefix, x, config.dspark_num_experts_per_tok
                )
                penalties.append(penalty)
                loads[prefix] = load
                return y

            streams, pre = self.trunk.sublayer(weights, prefix, "attn", streams, pre, attention)
            streams, pre = self.trunk.sublayer(weights, prefix, "ffn", streams, pre, feed_forward)
        hidden = (pre.unsqueeze(-1) * streams).sum(1)
        return hidden.view(batch, count, block, -1), penalties, loads

    def base_logits(self, weights: Weights, hidden: Tensor) -> Tensor:
        normed = rms_norm(hidden, weights[f"{self.last}.norm.weight"], self.config.rms_norm_eps)
        return functional.linear(normed.to(weights["head.weight"].dtype), weights["head.weight"])

    def markov(self, weights: Weights, previous: Tensor) -> tuple[Tensor, Tensor]:
        """(logit correction, its embedding) of the token before each place."""
        embedded = functional.embedding(previous, weights[f"{self.last}.markov_head.embed.weight"])
        return multiply(embedded, weights[f"{self.last}.markov_head.head.weight"]), embedded

    def confidence(self, weights: Weights, hidden: Tensor, embedded: Tensor) -> Tensor:
        """Raw scores; their sigmoid is the chance that a draft is accepted, if those before it were."""
        weight = weights[f"{self.last}.confidence_head.proj.weight"]
        features = torch.cat((hidden.to(weight.dtype), embedded.to(weight.dtype)), dim=-1)
        return wide(functional.linear(features, weight).squeeze(-1))

    def greedy(self, weights: Weights, hidden: Tensor, newest: Tensor) -> tuple[Tensor, Tensor]:
        """Draft tokens `[batch, anchors, block]` chosen left to right, and their raw confidences."""
        base = wide(self.base_logits(weights, hidden))
        previous, tokens, scores = newest, [], []
        for place in range(self.block):
            correction, embedded = self.markov(weights, previous)
            scores.append(self.confidence(weights, hidden[..., place, :], embedded))
            previous = (base[..., place, :] + wide(correction)).argmax(-1)
            tokens.append(previous)
        return torch.stack(tokens, dim=-1), torch.stack(scores, dim=-1)


def attend_block(query: Tensor, keys: Tensor, missing: Tensor, sink: Tensor) -> Tensor:
    """All rows of a block see the same keys: the window (some slots missing) and the whole block."""
    blocks, rows, heads, dim = query.shape
    scores = wide(query.flatten(1, 2) @ keys.mT).view(blocks, rows, heads, -1) * dim**-0.5
    absent = functional.pad(missing, (0, rows), value=False)
    scores = scores.masked_fill(absent.view(blocks, 1, 1, -1), -1e30)
    top = torch.maximum(scores.amax(-1), sink).detach()
    weights = torch.exp(scores - top.unsqueeze(-1))
    total = weights.sum(-1) + torch.exp(sink - top)
    shares = (weights / total.unsqueeze(-1)).to(query.dtype)
    return (shares.flatten(1, 2) @ keys).view(blocks, rows, heads, dim)
