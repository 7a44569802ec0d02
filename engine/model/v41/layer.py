"""One layer: an attention and a feed-forward sublayer between hyper-connections (model_spec 2.2, 8).

The order inside a layer is easy to get wrong, so it is written once, here: memory, then the draft block's
tap, then the coefficients from the streams, then contraction with the coefficients *of the sublayer before*.
At the YOCO boundary the rows that a truncated prompt does not need leave after the sources have stored their
keys, so `open` and `close` are two calls with that cut between them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference import hyper_connections

from .attention import Attention
from .caches import Caches
from .compressed import Selections
from .config import ModelConfig
from .engram_tables import EngramTable
from .feed_forward import FeedForward
from .memory import Memory
from .numerics import Numerics
from .roles import LayerRole
from .step import Probe, StepIndex
from .weights import BlockWeights, MixWeights


@dataclass(frozen=True)
class Streams:
    """What passes from sublayer to sublayer."""

    value: Tensor  # [rows, copies, dim]
    pre: Tensor  # [rows, copies], reading weights of the next sublayer

    def select(self, index: Tensor) -> Streams:
        return Streams(self.value[index], self.pre[index])

    def contract(self, operations: Operations) -> Tensor:
        return operations.contract(self.value, self.pre)


@dataclass(frozen=True)
class OpenSublayer:
    """A sublayer whose input is known and whose output is not: what `close` needs later."""

    streams: Tensor
    inputs: Tensor  # [rows, dim], normed
    pre_out: Tensor
    post: Tensor
    comb: Tensor

    def select(self, index: Tensor) -> OpenSublayer:
        return OpenSublayer(
            self.streams[index], self.inputs[index], self.pre_out[index], self.post[index], self.comb[index]
        )

    def close(self, output: Tensor, operations: Operations) -> Streams:
        return Streams(operations.expand(output, self.streams, self.post, self.comb), self.pre_out)


class Layer:
    """A trunk or draft layer."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        role: LayerRole,
        weights: BlockWeights,
        engram_table: EngramTable | None,
        operations: Operations,
    ) -> None:
        self.role = role
        self._operations = operations
        self._config = config
        self._weights = weights
        device = weights.attention_norm.device
        self.attention = Attention(config, numerics, role, weights.attention, operations)
        self._feed_forward = FeedForward(config, numerics, role.layer_id, weights.ffn, operations)
        self._memory = None
        if weights.engram is not None and engram_table is not None:
            self._memory = Memory(
                config, numerics, role.layer_id, weights.engram, engram_table, device, operations
            )
        self._sums = hyper_connections.sum_matrices(config.hc_mult, numerics.wide, device)

    def remember(
        self, streams: Streams, ngrams: Tensor | None, step: StepIndex, probe: Probe | None
    ) -> Streams:
        if self._memory is None or ngrams is None:
            return streams
        return Streams(self._memory(streams.value, ngrams, step.image_mask, probe), streams.pre)

    def open_attention(self, streams: Streams, probe: Probe | None) -> OpenSublayer:
        sublayer = self._open(streams, self._weights.attention_mix, self._weights.attention_norm)
        if probe is not None:
            for name, tensor in (("pre", sublayer.pre_out), ("post", sublayer.post), ("comb", sublayer.comb)):
                probe(f"attention_{name}", self.role.layer_id, tensor)
        return sublayer

    def close(
        self,
        attention: OpenSublayer,
        step: StepIndex,
        caches: Caches,
        selections: Selections,
        probe: Probe | None,
    ) -> Streams:
        """Run both sublayers from the attention's open state."""
        operations = self._operations
        attended = self.attention(attention.inputs, step, caches, selections, probe)
        streams = attention.close(attended, operations)
        feed_forward = self._open(streams, self._weights.ffn_mix, self._weights.ffn_norm)
        output = self._feed_forward(feed_forward.inputs, step.image_mask, probe)
        streams = feed_forward.close(output, operations)
        if probe is not None:
            probe("streams", self.role.layer_id, streams.value)
            probe("carried_pre", self.role.layer_id, streams.pre)
        return streams

    def _open(self, streams: Streams, mix: MixWeights, norm: Tensor) -> OpenSublayer:
        config = self._config
        inputs, pre_out, post, comb = self._operations.open_sublayer(
            streams.value,
            streams.pre,
            mix.weight,
            mix.base,
            mix.scale,
            norm,
            self._sums,
            iterations=config.hc_sinkhorn_iters,
            hc_eps=config.hc_eps,
            norm_eps=config.rms_norm_eps,
        )
        return OpenSublayer(streams.value, inputs, pre_out, post, comb)


def embed(embeddings_rows_dim: Tensor, copies: int, wide: torch.dtype) -> Streams:
    """Streams at the bottom of a stack: equal copies, of which the first sublayer reads the first."""
    rows = embeddings_rows_dim.shape[0]
    value = embeddings_rows_dim.unsqueeze(1).repeat(1, copies, 1)
    pre = torch.zeros(rows, copies, dtype=wide, device=value.device)
    pre[:, 0] = 1
    return Streams(value, pre)
