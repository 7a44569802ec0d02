"""A trunk layer over a whole sequence: who owns keys, who selects, what is seen (model_spec 1.6, 2.5-2.8)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.roles import LayerRole

from . import compressor, engram, indexer
from .arithmetic import Array
from .attention import window_positions
from .layer import AttentionRows, Rows, finish_attention, prepare_attention, run_experts
from .rope import frequencies
from .trace import Persisted, Trace
from .weights import Scope


@dataclass(frozen=True)
class Reach:
    """How far back window keys may be read: truncated prefill and replayed prefixes cut them off."""

    producers: int
    consumers: int

    def lowest(self, role: LayerRole) -> int:
        return self.consumers if role.is_consumer else self.producers


@dataclass(frozen=True)
class Memory:
    """The engram hash tables of a model, by layer."""

    multipliers: dict[int, list[int]]
    primes: dict[int, list[int]]
    pad: int


def _remember(config: ModelConfig, layer: Scope, role: LayerRole, rows: Rows, ids: list[int], memory: Memory,
              trace: Trace) -> None:  # fmt: skip
    trace.engram_rows[role.layer_id] = []
    for i, position in enumerate(rows.positions):
        recent = engram.history(ids, position, config.engram_max_ngram_size, memory.pad)
        table_rows = engram.row_ids(
            config, recent, memory.multipliers[role.layer_id], memory.primes[role.layer_id]
        )
        trace.engram_rows[role.layer_id].append(table_rows)
        if not rows.is_image[i]:
            rows.streams[i] = engram.remember(config, layer.within("engram."), rows.streams[i], table_rows)


def _compress(config: ModelConfig, layer: Scope, role: LayerRole, normed: list[Array], freqs: list[float],
              persisted: Persisted | None, trace: Trace) -> None:  # fmt: skip
    """Store the entries, and the index keys, of every finished group of this layer."""
    ratio, layer_id = role.ratio, role.layer_id
    entries, keys = [], []
    for j in range(len(normed) // ratio):
        if persisted is not None and (j + 1) * ratio <= persisted.length:
            entries.append(persisted.trace.entries[layer_id][j])
            if role.is_index_k_source:
                keys.append(persisted.trace.index_keys[layer_id][j])
            continue
        group = normed[j * ratio : (j + 1) * ratio]
        pooled = compressor.latent(config, layer.within("attn.compressor."), group)
        entries.append(compressor.entry(pooled, j, ratio, freqs))
        if role.is_index_k_source:
            keys.append(compressor.index_key(config, layer.within("attn.indexer."), pooled, j, ratio, freqs))
    trace.entries[layer_id] = entries
    if role.is_index_k_source:
        trace.index_keys[layer_id] = keys


def _select(config: ModelConfig, layer: Scope, role: LayerRole, rows: Rows, prepared: AttentionRows,
            freqs: list[float], trace: Trace) -> None:  # fmt: skip
    """Publish this layer's top-k of every row, and its candidate blocks if it is their source."""
    assert role.index_k_source is not None
    stored, indexer_weights = trace.index_keys[role.index_k_source], layer.within("attn.indexer.")
    chosen = []
    for i, position in enumerate(rows.positions):
        visible = stored[: compressor.visible_entries(position, role.ratio)]
        row_scores = indexer.scores(
            config, indexer_weights, prepared.normed[i], prepared.low_rank[i], position, visible, freqs
        )
        if role.is_candidate_source:
            trace.candidates.append(indexer.candidate_blocks(config, row_scores))
        blocks = trace.candidates[i] if role.uses_candidates else None
        chosen.append(indexer.select(config, row_scores, blocks))
    trace.topk[role.layer_id] = chosen


def run_layer(
    config: ModelConfig,
    layer: Scope,
    role: LayerRole,
    rows: Rows,
    trace: Trace,
    *,
    ids: list[int],
    memory: Memory,
    reach: Reach,
    persisted: Persisted | None,
) -> None:
    """Advance all rows of one sequence by one layer and record what happened in `trace`."""
    freqs, layer_id = frequencies(config, role.ratio), role.layer_id
    if role.has_engram:
        _remember(config, layer, role, rows, ids, memory, trace)
    if role.feeds_draft:
        trace.features[layer_id] = [np.mean(stream, axis=0) for stream in rows.streams]
    prepared = prepare_attention(config, layer, rows, freqs)
    if role.is_kv_source:
        _compress(config, layer, role, prepared.normed, freqs, persisted, trace)
    if role.is_index_source:
        _select(config, layer, role, rows, prepared, freqs, trace)

    def keys_of(i: int) -> list[Array]:
        window = window_positions(config, rows.positions[i], reach.lowest(role))
        keys = [prepared.window_keys[p] for p in window]
        if role.kv_source is not None and role.index_source is not None:
            keys += [trace.entries[role.kv_source][j] for j in trace.topk[role.index_source][i]]
        return keys

    finish_attention(config, layer, rows, prepared, keys_of, freqs)
    trace.routing[layer_id] = run_experts(config, layer, rows, config.num_experts_per_tok)
    trace.attention_inputs[layer_id] = prepared.contracted
    trace.attention_mixes[layer_id] = prepared.mixes
    trace.window_keys[layer_id] = prepared.window_keys
    trace.streams[layer_id] = list(rows.streams)
    trace.carried_pre[layer_id] = list(rows.pre)
