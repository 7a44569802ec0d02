"""Engram memory: n-gram lookups added to the streams at the start of a layer (model_spec 2.11)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepahead.devices.kernels.operations import Operations

from .batch import Batch
from .config import ModelConfig
from .engram_tables import EngramTable
from .numerics import Numerics
from .step import Probe
from .weights import EngramWeights


class Ngrams:
    """The last few tokens of every row, mapped to the compressed vocabulary. Once a step, for all layers."""

    def __init__(
        self,
        config: ModelConfig,
        token_map: Tensor | None,
        device: torch.device,
        operations: Operations,
    ) -> None:
        self._operations = operations
        self._length = config.engram_max_ngram_size
        self._token_map = token_map
        pad = config.engram_pad_token_id
        self._pad = token_map[pad] if token_map is not None else torch.tensor(pad, device=device)

    def __call__(self, batch: Batch) -> Tensor:
        """`[rows, ngram]`: the token itself first, then older ones; pads beyond the first non-text token."""
        return self._operations.collect_ngrams(
            batch.token_ids,
            batch.rows.sequence,
            batch.rows.row_start,
            batch.history,
            None if batch.images is None else batch.images.mask,
            self._token_map,
            self._pad,
            self._length,
        )


class Memory:
    """One layer's table, its hashes, and the gate that lets its content in."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        layer_id: int,
        weights: EngramWeights,
        table: EngramTable,
        device: torch.device,
        operations: Operations,
    ) -> None:
        self._operations = operations
        self._config, self._numerics, self._layer_id, self._weights = config, numerics, layer_id, weights
        self._multipliers = torch.tensor(table.multipliers, device=device)
        self._primes = torch.tensor(table.primes, device=device).view(-1, config.engram_n_heads)
        self._offsets = torch.tensor(table.offsets, device=device).view(-1, config.engram_n_heads)

    def __call__(
        self, streams: Tensor, ngrams: Tensor, image_mask: Tensor | None, probe: Probe | None
    ) -> Tensor:
        operations, hashing = self._operations, (self._multipliers, self._primes, self._offsets)
        if probe is not None:
            probe("engram_rows", self._layer_id, operations.hash_rows(ngrams, *hashing))
        found = operations.recall(ngrams, *hashing, self._weights.table, streams.dtype)
        key_value = operations.linear(
            self._numerics.matmul_input(found, operations), self._weights.projection
        )
        key_value = key_value.view(-1, self._config.hc_mult + 1, self._config.hidden_size)
        text_rows = None if image_mask is None else ~image_mask
        return operations.apply_memory(
            streams, key_value, self._weights.query_key, text_rows, self._config.rms_norm_eps
        )
