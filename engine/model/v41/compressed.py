"""Compressed keys: who writes them, and which of them a row attends to (model_spec 2.6, 2.7)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference.attention import KeyIndex

from .caches import Caches
from .config import ModelConfig
from .numerics import Numerics
from .roles import LayerRole
from .rows import Rows, Tiles, entry_slots
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
        latent = self._latent(inputs_rows_dim, step, caches)
        ratio = self._role.ratio
        rotated = self._operations.rotate_(latent.clone(), step.entry_turns[ratio])
        entries = self._numerics.compressed_entry(rotated)
        caches.entries[self._role.layer_id].index_copy_(0, step.entries[ratio].store, entries)
        return latent

    def _latent(self, inputs: Tensor, step: StepIndex, caches: Caches) -> Tensor:
        eps = self._config.rms_norm_eps
        if self._role.ratio == 1:
            return self._operations.rms_norm(
                self._operations.linear(inputs, self._weights.value_gate), self._weights.norm, eps
            )
        value_gate = self._operations.wide_linear(inputs, self._weights.value_gate)
        index = step.groups[self._role.ratio]
        pool = caches.groups[self._role.layer_id]
        rows = value_gate.shape[0]
        pool[index.staging : index.staging + rows] = value_gate
        members = pool.index_select(0, index.keys.slots).view(rows, self._role.ratio, -1)
        values, gates = members.chunk(2, dim=-1)
        pooled = self._operations.pool_group(values, gates).to(self._numerics.dtype)
        pool.index_copy_(0, index.store, value_gate)
        return self._operations.rms_norm(pooled, self._weights.norm, eps)


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
        ratio = self._role.ratio
        projected = self._operations.linear(latent_rows_dim, self._weights.key)
        normed = self._operations.rms_norm(projected, self._weights.key_norm, self._config.rms_norm_eps)
        key = self._numerics.index_vector(self._operations.rotate_(normed, step.entry_turns[ratio]))
        pool = caches.index_keys[self._role.layer_id]
        pool.view(-1, pool.shape[-1]).index_copy_(0, step.entries[ratio].store, key)

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
        available = step.block_table.shape[1] * index.per_block
        if available <= self._config.index_topk and not self._publishes_candidates(available):
            entries = _visible_entries(index.visible, available)
        else:
            entries = self._best(inputs_rows_dim, query_latent, step, caches, selections, probe)
        slots = entry_slots(entries, step.rows, step.block_table, index.per_block)
        return Chosen(entries, KeyIndex.of(slots, self._numerics.wide))

    def _publishes_candidates(self, available: int) -> bool:
        blocks = -(-available // self._config.candidate_block_size)
        return self._role.is_candidate_source and blocks > self._config.candidate_topk_blocks

    def _best(
        self,
        inputs: Tensor,
        query_latent: Tensor,
        step: StepIndex,
        caches: Caches,
        selections: Selections,
        probe: Probe | None,
    ) -> Tensor:
        query = self._query(query_latent, step)
        head_weights = self._operations.linear(inputs, self._weights.head_weights) * self._head_scale
        if self._role.uses_candidates and selections.candidate_blocks is not None:
            return self._best_candidates(query, head_weights, step, caches, selections.candidate_blocks)
        scores = self._all_scores(query, head_weights, step, caches)
        if self._publishes_candidates(scores.shape[1]):
            selections.candidate_blocks = self._operations.select_blocks(
                scores,
                step.entries[self._role.ratio].visible,
                self._config.candidate_block_size,
                self._config.candidate_topk_blocks,
            )
            if probe is not None:
                probe("candidate_blocks", self._role.layer_id, selections.candidate_blocks)
        return self._operations.select_topk(scores, self._config.index_topk)

    def _query(self, query_latent: Tensor, step: StepIndex) -> Tensor:
        heads, dim = self._config.index_n_heads, self._config.index_head_dim
        query = self._operations.linear(self._numerics.matmul_input(query_latent), self._weights.query)
        query = query.view(-1, heads, dim)
        return self._numerics.index_vector(
            self._operations.rotate_(query, step.turns[self._role.ratio].unsqueeze(1))
        )

    def _keys(self, caches: Caches) -> Tensor:
        source = self._role.index_k_source
        assert source is not None  # a layer with an indexer has a ratio, hence a source (config rules)
        return caches.index_keys[source]

    def _all_scores(self, query: Tensor, head_weights: Tensor, step: StepIndex, caches: Caches) -> Tensor:
        """Scores of every entry of a row's sequence: `[rows, entries]`, -inf where not visible."""
        tiles = step.rows.tiles
        members = _tile_rows(step.rows, tiles)
        blocks = step.block_table.index_select(0, tiles.sequence)
        keys = _take(self._keys(caches), blocks).flatten(1, 2)
        scores = self._operations.index_scores(
            _take(query, members), keys, _take(head_weights, members), narrow=self._numerics.quantized
        )
        scores = scores.flatten(0, 1).index_select(0, _row_places(step.rows, tiles))
        entry = torch.arange(scores.shape[1], device=scores.device)
        visible = step.entries[self._role.ratio].visible
        return scores.masked_fill_(entry >= visible.unsqueeze(1), -torch.inf)

    def _best_candidates(
        self, query: Tensor, head_weights: Tensor, step: StepIndex, caches: Caches, blocks: Tensor
    ) -> Tensor:
        """The top-k among candidate blocks: a row gathers only their keys, whatever the context length."""
        size = self._config.candidate_block_size
        index = step.entries[self._role.ratio]
        within = torch.arange(size, device=blocks.device)
        entries = (blocks.unsqueeze(-1) * size + within).flatten(1)
        hidden = (entries < 0) | (entries >= index.visible.unsqueeze(1))
        slots = entry_slots(entries.masked_fill(hidden, 0), step.rows, step.block_table, index.per_block)
        keys = _take(self._keys(caches).flatten(0, 1), slots)
        scores = self._operations.index_scores(
            query.unsqueeze(1), keys, head_weights.unsqueeze(1), narrow=self._numerics.quantized
        )
        best = self._operations.select_topk(
            scores.squeeze(1).masked_fill_(hidden, -torch.inf), self._config.index_topk
        )
        return entries.gather(1, best.clamp(min=0)).masked_fill_(best < 0, -1)


def _take(source: Tensor, index: Tensor) -> Tensor:
    """`source[index]` for an index of several dimensions. Indexing copies such rows element by element on a
    CPU; selecting copies them whole, four times as fast.
    """
    return source.index_select(0, index.flatten()).view(*index.shape, *source.shape[1:])


def _visible_entries(visible: Tensor, available: int) -> Tensor:
    numbers = torch.arange(available, device=visible.device)
    return torch.where(numbers < visible.unsqueeze(1), numbers, -1)


def _tile_rows(rows: Rows, tiles: Tiles) -> Tensor:
    """Row numbers `[tiles, height]`; places beyond the end of a sequence repeat rows nobody reads back."""
    first = rows.row_start[tiles.sequence] + tiles.offset
    members = first.unsqueeze(1) + torch.arange(tiles.rows, device=first.device)
    return members.clamp(max=rows.count - 1)


def _row_places(rows: Rows, tiles: Tiles) -> Tensor:
    """Place of each row in the flattened tiles."""
    number = torch.arange(rows.count, device=rows.sequence.device)
    return tiles.first[rows.sequence] * tiles.rows + number - rows.row_start[rows.sequence]
