"""The attention sublayer (model_spec 2.4, 2.5)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepahead.devices.kernels.operations import Operations

from .caches import Caches
from .compressed import Compressor, Indexer, Selections
from .config import ModelConfig
from .numerics import Numerics
from .roles import LayerRole
from .step import Probe, StepIndex
from .weights import AttentionWeights


class Attention:
    """Queries of many heads over one shared vector per position: a window, and entries chosen by an
    indexer."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        role: LayerRole,
        weights: AttentionWeights,
        operations: Operations,
    ) -> None:
        self._config, self._numerics, self._role, self._weights = config, numerics, role, weights
        self._operations = operations
        self._compressor = self._indexer = None
        if weights.compressor is not None:
            self._compressor = Compressor(config, numerics, role, weights.compressor, operations)
        if weights.indexer is not None:
            self._indexer = Indexer(config, numerics, role, weights.indexer, operations)

    def store_entries(self, inputs_rows_dim: Tensor, step: StepIndex, caches: Caches) -> None:
        """Write compressed entries and index keys, where this layer is their source.

        Apart from the rest because at the YOCO boundary all rows do this and only some go on.
        """
        if self._compressor is None:
            return
        latent = self._compressor.store(inputs_rows_dim, step, caches)
        if self._indexer is not None:
            self._indexer.store_key(latent, step, caches)

    def store_main_key(self, main_rows_dim: Tensor, step: StepIndex, caches: Caches) -> None:
        """Draft layers: write the window keys of rows the target has processed (model_spec 3.1)."""
        start = self._config.q_lora_rank
        projected = self._operations.linear(
            self._numerics.matmul_input(main_rows_dim), self._weights.query_a_kv[start:]
        )
        caches.window[self._role.layer_id].index_copy_(0, step.window.store, self._key(projected, step))

    def __call__(
        self,
        inputs_rows_dim: Tensor,
        step: StepIndex,
        caches: Caches,
        selections: Selections,
        probe: Probe | None,
    ) -> Tensor:
        """The sublayer's output `[rows, dim]`. Entries of this step are stored already."""
        config, numerics, weights, role = self._config, self._numerics, self._weights, self._role
        operations = self._operations
        turns = step.turns[role.ratio]
        projected = operations.linear(numerics.matmul_input(inputs_rows_dim), weights.query_a_kv)
        query_latent, projected_key = projected.split([config.q_lora_rank, config.head_dim], dim=-1)
        query_latent = operations.rms_norm(query_latent, weights.query_norm, config.rms_norm_eps)
        query = operations.linear(numerics.matmul_input(query_latent), weights.query_b)
        query = operations.rotate_(
            query.view(-1, config.num_attention_heads, config.head_dim), turns.unsqueeze(1)
        )
        if self._indexer is not None:
            selections.latest = self._indexer.choose(
                inputs_rows_dim, query_latent, step, caches, selections, probe
            )
            if probe is not None:
                probe("topk", role.layer_id, selections.latest.entries)
        key = self._key(projected_key, step)
        attended = self._attend(query, key, step, caches, selections)
        return self._output(operations.rotate_(attended, turns.unsqueeze(1), inverse=True))

    def _key(self, projected: Tensor, step: StepIndex) -> Tensor:
        normed = self._operations.rms_norm(projected, self._weights.kv_norm, self._config.rms_norm_eps)
        return self._numerics.window_key(self._operations.rotate_(normed, step.turns[self._role.ratio]))

    def _attend(
        self, query: Tensor, key: Tensor, step: StepIndex, caches: Caches, selections: Selections
    ) -> Tensor:
        role, window = self._role, step.window
        pool = caches.window[role.layer_id]
        pool[window.staging : window.staging + key.shape[0]] = key
        chosen = selections.latest if role.kv_source is not None else None
        attended = self._operations.sparse_attention(
            query,
            pool,
            window.keys,
            caches.entries[role.kv_source] if role.kv_source is not None else None,
            chosen.keys if chosen is not None else None,
            self._weights.sink,
            self._config.head_dim**-0.5,
            round_probabilities=self._numerics.quantized,
        )
        # After attending: the ring still held the history that the first rows of a long chunk needed.
        # Draft rows are not kept: the target's own keys will take these positions (model_spec 3.3).
        if not role.is_draft:
            pool.index_copy_(0, window.store, key)
        return attended

    def _output(self, attended_rows_heads_dim: Tensor) -> Tensor:
        """Grouped low-rank output: heads of a group share a projection to `o_lora_rank`."""
        groups = self._config.o_groups
        grouped = self._numerics.output_lora_input(attended_rows_heads_dim.flatten(1))
        grouped = grouped.view(grouped.shape[0], groups, -1).transpose(0, 1)
        latent = torch.bmm(grouped, self._weights.output_a.mT).transpose(0, 1).flatten(1)
        return self._operations.linear(self._numerics.matmul_input(latent), self._weights.output_b)
