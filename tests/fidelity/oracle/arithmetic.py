"""The three scalar-level functions that every other file of the oracle uses.

Everything here and in the neighbours is float64 numpy on one row (one token) at a time: slow on purpose,
because a reader must be able to check each line against model_spec without thinking about batches, masks or
memory layouts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """`x` scaled to unit root-mean-square, then by `weight` as it is stored (no `1 + weight`)."""
    return x / np.sqrt(np.mean(x * x) + eps) * weight


def sigmoid(x: Array) -> Array:
    """Logistic function, written through tanh so that no argument overflows."""
    return 0.5 * (1.0 + np.tanh(0.5 * np.asarray(x)))


def softmax(x: Array) -> Array:
    """Softmax of one row of numbers."""
    e = np.exp(x - np.max(x))
    return e / np.sum(e)
