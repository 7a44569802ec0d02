"""Rotation angles of all positions: plain in window-only layers, stretched in layers with entries (model_spec
2.4)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from stepahead.devices.kernels.reference.rotary import plain_frequencies, yarn_frequencies
from stepahead.engine.model.v41.config import ModelConfig


class Angles:
    """Tables of cosines and sines, `[positions, pairs]`."""

    def __init__(self, config: ModelConfig, length: int, device: torch.device, dtype: torch.dtype) -> None:
        self._tables = {}
        for compressed in (False, True):
            positions = torch.arange(length, dtype=torch.float64)
            frequencies = torch.tensor(_frequencies(config, compressed=compressed), dtype=torch.float64)
            angles = positions[:, None] * frequencies
            self._tables[compressed] = angles.cos().to(device, dtype), angles.sin().to(device, dtype)

    def __call__(
        self, ratio: int, start: int = 0, stop: int | None = None, step: int = 1
    ) -> tuple[Tensor, Tensor]:
        """(cosines, sines) of a range of positions, for a layer with this compression ratio."""
        cos, sin = self._tables[ratio > 0]
        return cos[start:stop:step], sin[start:stop:step]


def _frequencies(config: ModelConfig, *, compressed: bool) -> Sequence[float]:
    scaling, rotary = config.rope_scaling, config.qk_rope_head_dim
    if not compressed:
        return plain_frequencies(config.rope_theta, rotary)
    if scaling is None:
        return plain_frequencies(config.compress_rope_theta, rotary)
    return yarn_frequencies(
        config.compress_rope_theta, rotary, factor=scaling.factor, beta_fast=scaling.beta_fast,
        beta_slow=scaling.beta_slow, original_length=scaling.original_max_position_embeddings,
    )  # fmt: skip
