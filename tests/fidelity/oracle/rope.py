"""Rotary position embedding: position enters the model as a rotation of the last R numbers of a vector.

Neighbouring numbers (2i, 2i+1) form a plane; at position p the plane i turns by the angle `p * frequency_i`.
A dot product of two rotated vectors then depends on the difference of their positions only. Layers with
compressed keys use another base and slow their low frequencies down (YaRN), at every length (model_spec 2.3).
"""

from __future__ import annotations

import math

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import Array


def plain_frequencies(base: float, rotary_dim: int) -> list[float]:
    return [base ** (-2 * i / rotary_dim) for i in range(rotary_dim // 2)]


def frequencies(config: ModelConfig, ratio: int) -> list[float]:
    """One frequency per plane of a layer with compress ratio `ratio` (0: no compressed keys)."""
    rotary_dim = config.qk_rope_head_dim
    if ratio == 0:
        return plain_frequencies(config.rope_theta, rotary_dim)
    plain = plain_frequencies(config.compress_rope_theta, rotary_dim)
    yarn = config.rope_scaling
    if yarn is None:
        return plain

    def plane_that_turns(rotations: float) -> float:
        """The (fractional) plane that makes this many turns within the original context length."""
        turns = yarn.original_max_position_embeddings / (rotations * 2 * math.pi)
        return rotary_dim * math.log(turns) / (2 * math.log(config.compress_rope_theta))

    low = max(math.floor(plane_that_turns(yarn.beta_fast)), 0)
    high = min(math.ceil(plane_that_turns(yarn.beta_slow)), rotary_dim - 1)
    slowed = []
    for i, frequency in enumerate(plain):
        ramp = min(max((i - low) / max(high - low, 0.001), 0.0), 1.0)
        slowed.append(frequency * (1 - ramp) + (frequency / yarn.factor) * ramp)
    return slowed


def rotate(vector: Array, position: int, plane_frequencies: list[float]) -> Array:
    """`vector` [..., D] with its last R numbers rotated to `position`; a negative position rotates back."""
    first = vector.shape[-1] - 2 * len(plane_frequencies)
    rotated = vector.copy()
    for i, frequency in enumerate(plane_frequencies):
        cos, sin = math.cos(position * frequency), math.sin(position * frequency)
        a, b = vector[..., first + 2 * i], vector[..., first + 2 * i + 1]
        rotated[..., first + 2 * i] = a * cos - b * sin
        rotated[..., first + 2 * i + 1] = a * sin + b * cos
    return rotated
