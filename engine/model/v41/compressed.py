"""Compressed keys: who writes them, and which of them a row attends to (model_spec 2.6, 2.7)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference.attention import KeyIndex
from stepahead.devices.kernels.reference.indexer import Candidates, EntryView, IndexQuery

from .caches import Caches
from .config import ModelConfig
from .numerics import Numerics
from .roles import LayerRole
from .step import Probe, StepIndex
from .weights import CompressorWeights, IndexerWeights


@dataclass(frozen=True)
class Chosen:
    """The top-k of one index source: entry numbers for people, places of the pool for attention."""

    entries: Tensor  # [rows, index_topk] or fewer, ascending, -1 where none
    keys: KeyIndex


@dataclass
class Selections:
    """What the layers of one forward publish to later layers. Never kept across steps: it depends on
    queries."""

    latest: Chosen | None = None
    candidate_blocks: Tensor | None = None  # [rows, blocks], -1 padded; None while every block is a candidate


class Compressor:
    """Pools positions into entries and writes entries and index keys of one source layer."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        role: LayerRole,
        weights: CompressorWeights,
        operations: Operations,
    ) -> None:
        self._config, self._numerics, self._role, self._weights = config, numerics, role, weights
        self._operations = operations

    def store(self, inputs_rows_dim: Tensor, step: StepIndex, caches: Caches) -> Tensor:
        """Write the entries that the rows complete; return the latents `[rows, head_dim]` before rotation.

        Every row computes a latent, also one that completes no group: the shape must not depend on positions.
        The store index sends those to scratch.
        """
        operations, weights, ratio = self._operations, self._weights, self._role.ratio
        layer_id = self._role.layer_id
        if ratio == 1:
            return operations.store_entry_(
                operations.linear(inputs_rows_dim, weights.value_gate),
                weights.norm,
                self._config.rms_norm_eps,
                step.entry_turns[ratio],
                self._numerics.entry_form,
                caches.entries[layer_id],
                step.entries[ratio].store,
            )
        return operations.store_pooled_entry_(
            operations.wide_linear(inputs_rows_dim, weights.value_gate),
            caches.groups[layer_id],
            step.groups[ratio],
            weights.norm,
            self._config.rms_norm_eps,
            step.entry_turns[ratio],
            self._numerics.entry_form,
            caches.entries[layer_id],
            step.entries[ratio].store,
        )


class Indexer:
    """Chooses entries for the rows of one index source layer; writes index keys where it owns them."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        role: LayerRole,
        weights: IndexerWeights,
        operations: Operations,
    ) -> None:
        self._config, self._numerics, self._role, self._weights = config, numerics, role, weights
        self._operations = operations
        self._head_scale = (config.index_head_dim * config.index_n_heads) ** -0.5

    def store_key(self, latent_rows_dim: Tensor, step: StepIndex, caches: Caches) -> None:
        if self._weights.key is None or self._weights.key_norm is None:
            return
        pool = caches.index_keys[self._role.layer_id]
        ratio = self._role.ratio
        self._operations.store_key_(
            self._operations.linear(latent_rows_dim, self._weights.key),
            self._weights.key_norm,
            self._config.rms_norm_eps,
            step.entry_turns[ratio],
            self._numerics.index_form,
            pool.view(-1, pool.shape[-1]),
            step.entries[ratio].store,
        )

    def choose(
        self,
        inputs_rows_dim: Tensor,
        query_latent: Tensor,
        step: StepIndex,
        caches: Caches,
        selections: Selections,
        probe: Probe | None,
    ) -> Chosen:
        """Pick the best `index_topk` visible entries of each row, all of them while they are that few."""
        index = step.entries[self._role.ratio]
        view = EntryView(step.rows, step.block_table, index.visible, index.per_block)
        publish = self._publishes_candidates(view.available)
        if view.available <= self._config.index_topk and not publish:
            chosen = self._operations.visible_entries(view)
        else:
            blocks = selections.candidate_blocks if self._role.uses_candidates else None
            chosen = self._operations.choose_entries(
                self._query(inputs_rows_dim, query_latent, step),
                self._keys(caches),
                view,
                self._config.index_topk,
                Candidates(
                    self._config.candidate_block_size, self._config.candidate_topk_blocks, blocks, publish
                ),
            )
        if chosen.candidate_blocks is not None:
            selections.candidate_blocks = chosen.candidate_blocks
            if probe is not None:
                probe("candidate_blocks", self._role.layer_id, chosen.candidate_blocks)
        return Chosen(chosen.entries, KeyIndex.of(chosen.places, self._numerics.wide))

    def _publishes_candidates(self, available: int) -> bool:
        blocks = -(-available // self._config.candidate_block_size)
        return self._role.is_candidate_source and blocks > self._config.candidate_topk_blocks

    def _query(self, inputs: Tensor, query_latent: Tensor, step: StepIndex) -> IndexQuery:
        heads, dim = self._config.index_n_heads, self._config.index_head_dim
        query = self._operations.linear(query_latent, self._weights.query)
        return IndexQuery(
            query.view(-1, heads, dim),
            step.turns[self._role.ratio],
            self._operations.linear(inputs, self._weights.head_weights),
            self._head_scale,
            self._numerics.index_form,
            self._numerics.quantized,
        )

    def _keys(self, caches: Caches) -> Tensor:
        source = self._role.index_k_source
        assert source is not None  # a layer with an indexer has a ratio, hence a source (config rules)
        return caches.index_keys[source]
