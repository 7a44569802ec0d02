"""DeepSeek-V4.1: a forward pass over flat rows of many sequences (model_spec 2, 3).

    model = Model(config, load_weights(config, reader, numerics, device), numerics)
    caches = model.new_caches(CacheShape(blocks=65, state_slots=9, max_rows=512))
    output = model.forward(build_batch([SequenceChunk(ids, 0, 1, table)], device, ngram=4), caches)
    drafts = model.draft(output.logits.argmax(-1), anchor, slots, caches)

A forward takes any mix of prompt chunks and decode rows, reads what earlier forwards left in the caches, and
writes its own rows in place. It never asks the device for a value and no shape depends on one, so a step of
fixed size can be captured in a graph. Rows are independent but for the keys they read: a row's result does
not depend on what else is in the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from stepahead.devices.kernels.operations import REFERENCE, Operations

from .batch import Batch, Truncation
from .caches import Caches, CacheShape, allocate_caches, backtracking
from .compressed import Selections
from .config import ModelConfig
from .draft import DraftBlock, DraftPass
from .engram_tables import engram_tables
from .layer import Layer
from .memory import Ngrams
from .numerics import Numerics
from .roles import layer_roles
from .rows import BLOCK_TOKENS
from .step import Probe, StepIndex, StepIndexer, rotary_tables
from .streams import Streams, Written
from .weights import ModelWeights

POSITIONS_PAST_LIMIT = 2 * BLOCK_TOKENS
"""Rotary positions beyond the context limit: drafts of a step in flight may point there (engine_spec 1a)."""


class StepTooLarge(ValueError):
    """A step has more rows than the caches were allocated for."""


@dataclass(frozen=True)
class ForwardOutput:
    logits: Tensor  # [wanted rows, vocab], wide
    hidden: Tensor  # [wanted rows, dim], before the final norm
    scored: Tensor | None = None  # [scored rows, dim], the same of `Batch.scored_rows`


class Model:
    """The weights of one model and the arithmetic over them."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        numerics: Numerics,
        *,
        token_map: Tensor | None = None,
        operations: Operations = REFERENCE,
    ) -> None:
        """`token_map` `[vocab]` int64 maps raw to compressed ids for Engram; None is the identity."""
        self.config, self.weights, self.numerics = config, weights, numerics
        self.operations = operations
        self.device = weights.embed.device
        self._roles = layer_roles(config)
        positions = config.max_position_embeddings + POSITIONS_PAST_LIMIT
        self._tables = rotary_tables(config, numerics, self.device, positions)
        memories = {table.layer_id: table for table in engram_tables(config)}
        trunk_count = config.num_hidden_layers
        self._layers = tuple(
            Layer(config, numerics, role, block, memories.get(role.layer_id), operations)
            for role, block in zip(self._roles[:trunk_count], weights.blocks, strict=True)
        )
        self._ngrams = Ngrams(config, token_map, self.device, operations) if config.engram_layer_ids else None
        self._boundary = config.n_prefill_layer
        self._draft = self._build_draft(weights)

    def _build_draft(self, weights: ModelWeights) -> DraftBlock | None:
        if weights.draft is None:
            return None
        roles = self._roles[self.config.num_hidden_layers :]
        layers = tuple(
            Layer(self.config, self.numerics, role, block, None, self.operations)
            for role, block in zip(roles, weights.draft.blocks, strict=True)
        )
        return DraftBlock(
            self.config, self.numerics, weights, weights.draft, layers, self._tables, self.operations
        )

    def new_caches(self, shape: CacheShape) -> Caches:
        return allocate_caches(self.config, self.numerics, shape, self.device)

    def check_truncation(self, truncation: Truncation) -> None:
        """Reject a suffix too short for the window and a rollback (model_spec 2.8)."""
        least = self.config.sliding_window + backtracking(self.config)
        if truncation.mode not in ("mask", "compact"):
            raise ValueError(f"truncation mode {truncation.mode!r} is none of 'mask', 'compact'")
        if truncation.keep < least:
            raise ValueError(f"truncation keeps {truncation.keep} positions; at least {least} are needed")

    @torch.inference_mode()
    def forward(
        self, batch: Batch, caches: Caches, probe: Probe | None = None, *, drafting: bool = True
    ) -> ForwardOutput:
        """Run the trunk over all rows and leave the draft block's keys behind, if anybody will draft.

        Raises `StepTooLarge` before anything is written.
        """
        if batch.rows.count > caches.shape.max_rows:
            raise StepTooLarge(f"{batch.rows.count} rows; the caches take {caches.shape.max_rows} a step")
        indexer = StepIndexer(self.config, self._roles, self._tables, caches.shape, self.operations)
        step = indexer.producers(batch)
        consumer_step = indexer.consumers(batch, step)
        last, features = self._trunk(batch, step, consumer_step, caches, probe)
        if self._draft is not None and drafting:
            main = self.operations.mean_of_copies(features)
            if probe is not None:
                probe("main_hidden", -1, main)
            self._draft.store_main_keys(main, consumer_step, caches)
        hidden, normed = last.finish(self.weights.norm, self.config.rms_norm_eps, self.operations)
        scored = None if batch.scored_rows is None else hidden[batch.scored_rows]
        if batch.logit_rows is not None:
            hidden, normed = hidden[batch.logit_rows], normed[batch.logit_rows]
        logits = self.operations.wide_linear(normed, self.weights.head)
        return ForwardOutput(logits, hidden, scored)

    def logits(self, hidden: Tensor) -> Tensor:
        """The head over hidden rows `[rows, dim]`: `[rows, vocab]`, wide."""
        normed = self.operations.rms_norm(hidden, self.weights.norm, self.config.rms_norm_eps)
        return self.operations.wide_linear(normed, self.weights.head)

    def _trunk(
        self, batch: Batch, step: StepIndex, consumer_step: StepIndex, caches: Caches, probe: Probe | None
    ) -> tuple[Streams | Written, list[Tensor]]:
        """The streams above the last layer, and those that the draft block's features are made of."""
        entering: Streams | Written = self._embed(batch)
        ngrams = self._ngrams(batch) if self._ngrams is not None else None
        selections = Selections()
        features: list[Tensor] = []
        for layer in self._layers:
            attention = layer.open(entering, ngrams, step, probe)
            layer.attention.store_entries(attention.inputs, step, caches)
            if layer.role.layer_id == self._boundary:
                step = consumer_step
                if batch.retained is not None:
                    attention = attention.select(batch.retained.index)
                    features = [feature[batch.retained.index] for feature in features]
            if layer.role.feeds_draft:
                features.append(attention.streams)
            entering = layer.close(attention, step, caches, selections, probe)
        return entering, features

    def _embed(self, batch: Batch) -> Streams:
        copies = self.config.hc_mult
        if batch.images is None:
            return Streams(*self.operations.embed(self.weights.embed, batch.token_ids, copies))
        text = functional.embedding(batch.token_ids, self.weights.embed)
        mask, images = batch.images.mask.unsqueeze(1), batch.images.embeddings.to(text.dtype)
        return Streams(*self.operations.stack_copies(torch.where(mask, images, text), copies))

    @torch.inference_mode()
    def draft(self, newest: Tensor, anchor: Tensor, state_slot: Tensor, caches: Caches) -> DraftPass:
        """One draft round; see `DraftBlock.run`. The model must have draft layers."""
        if self._draft is None:
            raise ValueError("this model has no draft layers (num_nextn_predict_layers is 0)")
        if newest.shape[0] * self.config.dspark_block_size > caches.shape.max_rows:
            raise StepTooLarge(
                f"{newest.shape[0]} draft blocks; the caches take {caches.shape.max_rows} rows"
            )
        return self._draft.run(newest, anchor, state_slot, caches)
