"""The small random model of the invariant tests, with its oracle and what the oracle says about one text."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from stepahead.engine.model.v41.batch import Truncation
from stepahead.engine.model.v41.config import ModelConfig

from .configurations import small_config
from .fast_path import FastModel
from .oracle import Oracle, Trace
from .random_weights import random_weights

EXACT = 1e-9
"""What "equal" means between float64 computations that differ in the order of their sums (model_spec 7.3)."""

KEEP = 14
"""The shortest suffix a truncated prompt of the small model may keep: the window and a rollback."""


@dataclass(frozen=True)
class Small:
    """A configuration, its random weights, and two implementations of the model."""

    config: ModelConfig
    weights: dict[str, Tensor] = field(repr=False)

    @classmethod
    def build(cls, **changes: Any) -> Small:
        config = small_config(**changes)
        return cls(config, random_weights(config))

    @cached_property
    def oracle(self) -> Oracle:
        return Oracle(self.config, self.weights)

    @cached_property
    def fast(self) -> FastModel:
        """The model without truncation; take a fresh session for each use."""
        return FastModel(self.config, self.weights)

    @cached_property
    def mask(self) -> FastModel:
        return self.truncated("mask")

    @cached_property
    def compact(self) -> FastModel:
        return self.truncated("compact")

    def truncated(self, mode: str, keep: int = KEEP) -> FastModel:
        return FastModel(self.config, self.weights, truncation=Truncation(mode, keep))

    def text(self, length: int, seed: int = 0) -> list[int]:
        """Random text tokens (no special ones)."""
        drawn = np.random.default_rng(seed).integers(3, self.config.vocab_size - 8, length)
        return [int(token) for token in drawn]

    @cached_property
    def tokens(self) -> list[int]:
        """A text that is long for this model: the window, the top-k and the candidate stage all bite."""
        return self.text(60)

    @cached_property
    def trace(self) -> Trace:
        return self.oracle.forward(self.tokens)


def distance(a: object, b: object) -> float:
    """The largest absolute difference of two arrays of one shape."""
    first, second = np.asarray(a), np.asarray(b)
    assert first.shape == second.shape, (first.shape, second.shape)
    return float(np.max(np.abs(first - second)))
