"""Random weights of any configuration, for benchmarks and tests that need a model but no knowledge.

Every tensor has its own seed, hashed from its name: the weights do not depend on the order of reading, and
two configurations that share a tensor of equal shape share its values. Magnitudes keep activations near one,
so that a random model takes the same branches as a trained one (no dead experts, no saturated gates).

Source of the hyper-connection initialisation: model_spec 2.2.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable

import torch
from torch import Generator, Tensor

from ..v41.config import ModelConfig
from .formats import QuantizedTensor, fake_quantize, quantize
from .layout import tensor_specs
from .storage import Shape, StorageKind, TensorSpec

_NORM_SPREAD = 0.1
_SINK_SPREAD = 0.5
_GATE_BIAS_SPREAD = 0.02
_MIX_SPREAD = 0.02
_MIX_SCALE = 0.01
_MIX_BASE = 3.0


class DummyReader:
    """Seeded random weights behind the interface of `CheckpointReader`, readable any number of times."""

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        self._config = config
        self._seed = seed
        self._specs = tensor_specs(config)

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def names(self) -> tuple[str, ...]:
        return tuple(self._specs)

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The weight as it would come back from a checkpoint: rounded to its stored format, in `dtype`."""
        return fake_quantize(self._draw(name), self._specs[name].kind).to(dtype)

    def read_quantized(self, name: str) -> QuantizedTensor:
        """A quantized weight as a checkpoint would store it. `ValueError` for a plain weight."""
        kind = self._specs[name].kind
        if not kind.is_quantized:
            raise ValueError(f"{name} is stored unquantized; use read()")
        return quantize(self._draw(name), kind)

    def read_stored(self, name: str, spec: TensorSpec) -> Tensor | QuantizedTensor:
        """The weight in the storage of `spec`."""
        if spec.kind.is_quantized:
            return quantize(self._draw(name), spec.kind)
        return self.read(name, torch.float32 if spec.kind is StorageKind.FP32 else torch.bfloat16)

    def _draw(self, name: str) -> Tensor:
        digest = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=8).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
        return _initial_value(name)(self._specs[name].shape, generator, name)


Initialiser = Callable[[Shape, Generator, str], Tensor]


def _initial_value(name: str) -> Initialiser:
    for pattern, initialiser in _INITIALISERS:
        if pattern.search(name):
            return initialiser
    return _matrix


def _normal(shape: Shape, generator: Generator) -> Tensor:
    return torch.randn(shape, generator=generator)


def _matrix(shape: Shape, generator: Generator, _name: str) -> Tensor:
    """Keeps the variance of its input."""
    return _normal(shape, generator) * math.sqrt(1 / math.prod(shape[1:]))


def _near_one(shape: Shape, generator: Generator, _name: str) -> Tensor:
    return 1 + _NORM_SPREAD * _normal(shape, generator)


def _unit(shape: Shape, generator: Generator, _name: str) -> Tensor:
    return _normal(shape, generator)


def _scaled(spread: float) -> Initialiser:
    return lambda shape, generator, _name: spread * _normal(shape, generator)


def _mix_scale(shape: Shape, _generator: Generator, _name: str) -> Tensor:
    return torch.full(shape, _MIX_SCALE)


def _mix_base(shape: Shape, _generator: Generator, name: str) -> Tensor:
    """Copy `layer % copies` is read, every copy is written once and kept to itself."""
    copies = next(c for c in range(1, shape[0] + 1) if (2 + c) * c == shape[0])
    layer_id = int(name.split(".")[1])
    pre = torch.full((copies,), -_MIX_BASE)
    pre[layer_id % copies] = _MIX_BASE
    comb = torch.full((copies, copies), -_MIX_BASE).fill_diagonal_(_MIX_BASE)
    return torch.cat((pre, torch.zeros(copies), comb.flatten()))


_INITIALISERS: tuple[tuple[re.Pattern[str], Initialiser], ...] = tuple(
    (re.compile(pattern), initialiser)
    for pattern, initialiser in (
        (r"norm\d?\.weight$|engram\.[qk]_weight$", _near_one),
        (r"hc_\w+_fn$", _scaled(_MIX_SPREAD)),
        (r"hc_\w+_base$", _mix_base),
        (r"hc_\w+_scale$", _mix_scale),
        (r"attn_sink$", _scaled(_SINK_SPREAD)),
        (r"gate\.bias(_vl)?$", _scaled(_GATE_BIAS_SPREAD)),
        (r"\.bias$", _scaled(_GATE_BIAS_SPREAD)),
        (r"embed\.weight$|image_\w+$", _unit),
    )
)
"""The first pattern found in a name decides; all other tensors are matrices."""
