"""Mixture of experts: K of E experts per token, plus one shared expert for all (model_spec 2.9).

A bias steers which experts are chosen but never how much they count. Rows of an image span have a bias of
their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import Array, sigmoid
from .indexer import best
from .weights import Scope


@dataclass(frozen=True)
class Routing:
    """The chosen experts in ascending id order and their weights, which sum to routed_scaling_factor."""

    experts: list[int]
    weights: list[float]


def route(config: ModelConfig, gate: Scope, u: Array, per_token: int, is_image: bool) -> Routing:
    """Choose `per_token` experts for the normed input `u` [d]."""
    affinity = np.sqrt(np.logaddexp(0.0, gate["weight"] @ u))  # sqrt(softplus)
    bias = gate["bias_vl"] if is_image else gate["bias"]
    chosen = best({e: float(affinity[e] + bias[e]) for e in range(len(affinity))}, per_token)
    total = sum(float(affinity[e]) for e in chosen) + 1e-20
    return Routing(chosen, [float(affinity[e]) / total * config.routed_scaling_factor for e in chosen])


def feed_forward(config: ModelConfig, expert: Scope, u: Array, weight: float) -> Array:
    """Clamped SwiGLU: the gate is clamped from above only, the up projection on both sides."""
    limit = config.swiglu_limit
    gate = np.minimum(expert["w1.weight"] @ u, limit)
    up = np.clip(expert["w3.weight"] @ u, -limit, limit)
    return expert["w2.weight"] @ (weight * (gate * sigmoid(gate) * up))


def mixture(config: ModelConfig, ffn: Scope, u: Array, routing: Routing) -> Array:
    """The shared expert plus the weighted chosen ones."""
    total = feed_forward(config, ffn.within("shared_experts."), u, 1.0)
    for expert, weight in zip(routing.experts, routing.weights, strict=True):
        total = total + feed_forward(config, ffn.within(f"experts.{expert}."), u, weight)
    return total
