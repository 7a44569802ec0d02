"""Residual streams on their way from sublayer to sublayer (model_spec 2.2).

A sublayer reads the streams once, through coefficients that the sublayer before it computed, and writes once,
when its output is known. The write is not done there: a `Written` keeps output and coefficients together
until somebody reads the streams. The next sublayer then mixes, measures, contracts and norms in one go,
and the head mixes and contracts streams that are never stored. Only what sits between sublayers (the
memory, an observer) makes the streams exist by asking for `mixed`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference import hyper_connections

from .config import ModelConfig
from .weights import MixWeights


@dataclass(frozen=True)
class Streams:
    """Streams in memory, and how the next sublayer reads them."""

    value: Tensor  # [rows, copies, dim]
    pre: Tensor  # [rows, copies]

    def mixed(self, operations: Operations) -> Streams:
        return self

    def finish(self, norm: Tensor, eps: float, operations: Operations) -> tuple[Tensor, Tensor]:
        """What a head reads: rows `[rows, dim]` before and after its norm."""
        hidden = operations.contract(self.value, self.pre)
        return hidden, operations.rms_norm(hidden, norm, eps)


@dataclass(frozen=True)
class Written:
    """A sublayer's output beside the streams it goes into: they mix when they are read."""

    output: Tensor  # [rows, dim]
    streams: Tensor  # [rows, copies, dim], as the sublayer found them
    pre: Tensor  # [rows, copies], how the next sublayer reads the mixed ones
    post: Tensor  # [rows, copies]
    comb: Tensor  # [rows, source, destination]

    def mixed(self, operations: Operations) -> Streams:
        return Streams(operations.expand(self.output, self.streams, self.post, self.comb), self.pre)

    def finish(self, norm: Tensor, eps: float, operations: Operations) -> tuple[Tensor, Tensor]:
        """See `Streams.finish`."""
        return operations.close_stack(
            self.output, self.streams, self.post, self.comb, self.pre, norm, norm_eps=eps
        )


@dataclass(frozen=True)
class OpenSublayer:
    """A sublayer whose input is known and whose output is not."""

    streams: Tensor
    inputs: Tensor  # [rows, dim], normed
    pre: Tensor
    post: Tensor
    comb: Tensor

    def select(self, index: Tensor) -> OpenSublayer:
        return OpenSublayer(
            self.streams[index], self.inputs[index], self.pre[index], self.post[index], self.comb[index]
        )

    def write(self, output: Tensor) -> Written:
        return Written(output, self.streams, self.pre, self.post, self.comb)


class Opener:
    """The beginning of one sublayer: the weights with which it reads streams."""

    def __init__(self, config: ModelConfig, mix: MixWeights, norm: Tensor, operations: Operations) -> None:
        self._operations, self._config = operations, config
        sums = hyper_connections.sum_matrices(config.hc_mult, mix.weight.dtype, mix.weight.device)
        weight = operations.prepare_mix(mix.weight, config.hc_mult)
        self._weights = (weight, mix.base, mix.scale, norm, sums)

    def __call__(self, entering: Streams | Written) -> OpenSublayer:
        config = self._config
        if isinstance(entering, Streams):
            opened = self._operations.open_sublayer(
                entering.value,
                entering.pre,
                *self._weights,
                iterations=config.hc_sinkhorn_iters,
                hc_eps=config.hc_eps,
                norm_eps=config.rms_norm_eps,
            )
            return OpenSublayer(entering.value, *opened)
        return OpenSublayer(
            *self._operations.expand_and_open(
                entering.output,
                entering.streams,
                entering.post,
                entering.comb,
                entering.pre,
                *self._weights,
                iterations=config.hc_sinkhorn_iters,
                hc_eps=config.hc_eps,
                norm_eps=config.rms_norm_eps,
            )
        )
