"""The publisher's golden vectors and the oracle's view of the same model, loaded once per test session."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from stepahead.engine.model.v41.config import ModelConfig

from .configurations import MICRO, micro_config
from .oracle import Draft, ImageSpan, Oracle, Trace, load_weights


@dataclass(frozen=True)
class Golden:
    """The micro model: `vectors` are exact.npz (data/micro/README.md says what each key means)."""

    config: ModelConfig
    weights: dict[str, np.ndarray]
    vectors: dict[str, np.ndarray]
    oracle: Oracle

    @classmethod
    def load(cls) -> Golden:
        config = micro_config()
        weights = load_weights(MICRO / "checkpoint")
        with np.load(MICRO / "exact.npz") as archive:
            vectors = {key: archive[key] for key in archive.files}
        return cls(config, weights, vectors, Oracle(config, weights))

    @cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The dequantized weights as float64 tensors."""
        return {name: torch.from_numpy(weight) for name, weight in self.weights.items()}

    @property
    def image_tokens(self) -> list[int]:
        return [int(t) for t in self.vectors["image_tokens"]]

    @property
    def tokens(self) -> list[int]:
        return [int(t) for t in self.vectors["tokens"]]

    @property
    def image(self) -> ImageSpan:
        height, width = self.vectors["image_grid_hw"]
        features = self.vectors["image_features"].astype(np.float64)
        return ImageSpan(int(self.vectors["image_start"]), (int(height), int(width)), features)

    @property
    def draft_rounds(self) -> list[tuple[int, int]]:
        """(position a, golden token) of each recorded round."""
        pairs = zip(self.vectors["draft_position"], self.vectors["draft_golden_token"], strict=True)
        return [(int(a), int(token)) for a, token in pairs]

    @cached_property
    def trace(self) -> Trace:
        return self.oracle.forward(self.tokens)

    @cached_property
    def image_trace(self) -> Trace:
        return self.oracle.forward(self.image_tokens, image=self.image)

    @cached_property
    def drafts(self) -> list[Draft]:
        return [self.oracle.draft(self.trace, a, token) for a, token in self.draft_rounds]
