"""The n-gram memory (model_spec 2.11): table rows of hashed n-grams, and the gate that adds them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.engram_tables import engram_tables

from .arithmetic import wide


def remember(streams: Tensor, memory: Tensor, query_weight: Tensor, key_weight: Tensor, eps: float) -> Tensor:
    """Add the gated Engram memory (model_spec 2.11); `memory` is `[rows, copies + 1, dim]`."""
    keys, value = wide(memory[:, :-1]), wide(memory[:, -1:])
    dot = (streams * (query_weight * key_weight) * keys).sum(-1, keepdim=True) * streams.shape[-1] ** -0.5
    dot = dot * torch.rsqrt(streams.square().mean(-1, keepdim=True) + eps)
    dot = dot * torch.rsqrt(keys.square().mean(-1, keepdim=True) + eps)
    gate = torch.sigmoid(torch.copysign(dot.abs().clamp(min=1e-6).sqrt(), dot))
    return streams + gate * value


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
