"""The whole model, one sequence at a time: start reading here.

    embed -> 10..40 layers (trunk.py) -> contract -> norm -> head          Oracle.forward
    target features -> main keys -> draft block -> Markov head             Oracle.draft

There is no cache, no chunk and no batch: a forward computes every position from the beginning. Whatever the
engine does with caches must therefore equal a slice of one forward here, which is what makes this an oracle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.roles import layer_roles

from . import drafting, engram
from .arithmetic import Array, rms_norm
from .hyper_connections import contract
from .layer import Rows
from .trace import Draft, ImageSpan, Persisted, Trace
from .trunk import Memory, Reach, run_layer
from .weights import Scope, as_float64


class Oracle:
    """DeepSeek-V4.1 in float64, exact numeric level (model_spec 2.0 "N0"), from weights by published name."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Array | torch.Tensor],
        compressed_ids: Sequence[int] | None = None,
    ) -> None:
        """`compressed_ids` maps a token id to its engram id; None is the identity."""
        self.config = config
        self.weights = Scope(as_float64(weights), "")
        self.compressed_ids = compressed_ids
        distinct = config.engram_compressed_vocab_size or config.vocab_size
        pad = config.engram_pad_token_id
        self.memory = Memory(
            multipliers={i: engram.multipliers(config, i, distinct) for i in config.engram_layer_ids},
            primes=engram.primes(config),
            pad=compressed_ids[pad] if compressed_ids is not None else pad,
        )

    def forward(
        self,
        tokens: Sequence[int],
        *,
        image: ImageSpan | None = None,
        truncation: int | None = None,
        prompt_length: int | None = None,
        valid_start: int = 0,
        persisted: Persisted | None = None,
    ) -> Trace:
        """All positions of one sequence.

        `truncation` keeps that many rows of the prompt (`prompt_length` tokens, default all) for the consumer
        layers: their window keys below the kept rows are not read, and rows below are computed but mean
        nothing (2.8). Window keys below `valid_start` are not read in any layer, and `persisted` entries
        replace computed ones: together they define the replay of a cached prefix (5.5).
        """
        prompt = len(tokens) if prompt_length is None else prompt_length
        kept_from = 0 if truncation is None else prompt - truncation
        reach = Reach(producers=valid_start, consumers=max(valid_start, kept_from))
        trace = Trace(tokens=list(tokens))
        rows = self._embed(tokens, image)
        ids = self._engram_ids(tokens, rows.is_image)
        for role in layer_roles(self.config)[: self.config.num_hidden_layers]:
            layer = self.weights.within(f"layers.{role.layer_id}.")
            run_layer(
                self.config, layer, role, rows, trace,
                ids=ids, memory=self.memory, reach=reach, persisted=persisted,
            )  # fmt: skip
        trace.logits = np.array(
            [self._logits(stream, pre) for stream, pre in zip(rows.streams, rows.pre, strict=True)]
        )
        if self.config.num_nextn_predict_layers:
            targets = self.config.dspark_target_layer_ids
            trace.main_hidden = [
                np.concatenate([trace.features[t][p] for t in targets]) for p in range(len(tokens))
            ]
            trace.main_keys = drafting.main_keys(self.config, self.weights, trace.main_hidden)
        return trace

    def draft(
        self,
        trace: Trace,
        position: int,
        golden_token: int,
        *,
        block: Sequence[int] | None = None,
        forced: Sequence[int] = (),
        valid_start: int = 0,
    ) -> Draft:
        """Guesses for positions `position + 2` onwards, when `golden_token` stands at `position + 1`.

        `trace` must cover `position`. `block` replaces the input tokens and `forced` the first choices; both
        exist for tests that ask what depends on what.
        """
        noise = [self.config.dspark_noise_token_id] * (self.config.dspark_block_size - 1)
        block_tokens = [golden_token, *noise] if block is None else block
        rows = drafting.block_rows(self.config, self.weights, block_tokens, position + 1)
        hidden = drafting.run_block(self.config, self.weights, rows, trace.main_keys, position, valid_start)
        return drafting.guess(self.config, self.weights, hidden, golden_token, forced)

    def _embed(self, tokens: Sequence[int], image: ImageSpan | None) -> Rows:
        """Embeddings, or the vectors of the image span; all copies of the stream start equal."""
        span: dict[int, Array] = {}
        if image is not None:
            span = {image.start + i: v for i, v in enumerate(image.vectors(self.weights.weights))}
        copies = self.config.hc_mult
        vectors = [span[p] if p in span else self.weights["embed.weight"][t] for p, t in enumerate(tokens)]
        return Rows(
            positions=list(range(len(tokens))),
            is_image=[p in span for p in range(len(tokens))],
            streams=[np.tile(vector, (copies, 1)) for vector in vectors],
            pre=[np.eye(copies)[0] for _ in vectors],  # the first sublayer reads copy 0
        )

    def _engram_ids(self, tokens: Sequence[int], is_image: list[bool]) -> list[int]:
        mapped = tokens if self.compressed_ids is None else [self.compressed_ids[t] for t in tokens]
        return [engram.IMAGE_ROW if image else int(t) for t, image in zip(mapped, is_image, strict=True)]

    def _logits(self, stream: Array, pre: Array) -> Array:
        hidden = rms_norm(contract(stream, pre), self.weights["norm.weight"], self.config.rms_norm_eps)
        return self.weights["head.weight"] @ hidden
