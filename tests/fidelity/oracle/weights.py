"""Weights by published name, seen through a prefix: `Scope(weights, "layers.3.attn.")["wkv.weight"]`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch

from .arithmetic import Array


def as_float64(weights: Mapping[str, Array | torch.Tensor]) -> dict[str, Array]:
    """The same weights as float64 numpy arrays."""
    converted = {}
    for name, value in weights.items():
        if isinstance(value, torch.Tensor):
            value = value.detach().to("cpu", torch.float64).numpy()
        converted[name] = np.asarray(value, dtype=np.float64)
    return converted


@dataclass(frozen=True)
class Scope:
    """All weights whose name starts with `prefix`."""

    weights: Mapping[str, Array]
    prefix: str

    def __getitem__(self, name: str) -> Array:
        return self.weights[self.prefix + name]

    def within(self, prefix: str) -> Scope:
        return Scope(self.weights, self.prefix + prefix)
