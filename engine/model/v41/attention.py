"""The attention sublayer (model_spec 2.4, 2.5)."""

from __future__ import annotations

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
        self._operations.store_key_(
            self._operations.linear(
                self._numerics.matmul_input(main_rows_dim, self._operations), self._weights.query_a_kv[start:]
            ),
            self._weights.kv_norm,
            self._config.rms_norm_eps,
            step.turns[self._role.ratio],
            self._numerics.window_form,
            caches.window[self._role.layer_id],
            step.window.store,
        )

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
        query_latent = operations.open_latents_(
            operations.linear(numerics.matmul_input(inputs_rows_dim, operations), weights.query_a_kv),
            weights.query_norm,
            weights.kv_norm,
            config.rms_norm_eps,
            step.turns[role.ratio],
            caches.window[role.layer_id],
            step.window,
            # Draft rows are not kept: the target's own keys will take these positions (model_spec 3.3).
            keep=not role.is_draft,
            quantized=numerics.quantized,
        )
        query = operations.linear(query_latent, weights.query_b)
        if self._indexer is not None:
            selections.latest = self._indexer.choose(
                inputs_rows_dim, query_latent, step, caches, selections, probe
            )
            if probe is not None:
                probe("topk", role.layer_id, selections.latest.entries)
        return self._output(self._attend(query, step, caches, selections))

    def _attend(self, query: Tensor, step: StepIndex, caches: Caches, selections: Selections) -> Tensor:
        role, config = self._role, self._config
        pool = caches.window[role.layer_id]
        chosen = selections.latest if role.kv_source is not None else None
        attended = self._operations.attend(
            query.view(-1, config.num_attention_heads, config.head_dim),
            step.turns[role.ratio],
            pool,
            step.window.keys,
            caches.entries[role.kv_source] if role.kv_source is not None else None,
            chosen.keys if chosen is not None else None,
            self._weights.sink,
            config.head_dim**-0.5,
            round_probabilities=self._numerics.quantized,
        )
        # After attending: the ring still held the history that the first rows of a long chunk needed.
        if not role.is_draft:
            self._operations.keep_rows_(pool, step.window)
        return attended

    def _output(self, attended_rows_heads_dim: Tensor) -> Tensor:
        """Grouped low-rank output: heads of a group share a projection to `o_lora_rank`."""
        attended = self._numerics.output_lora_input(attended_rows_heads_dim.flatten(1), self._operations)
        latent = self._operations.grouped_linear(attended, self._weights.output_a)
        return self._operations.linear(
            self._numerics.matmul_input(latent, self._operations), self._weights.output_b
        )
