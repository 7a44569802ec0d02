"""The mixture-of-experts sublayer (model_spec 2.9).

Two operations: one decides where rows go, one takes them there. Between them lies what people want to see,
the choice, and what a set of kernels may leave for itself, the order in which it sorted the rows.
"""

from __future__ import annotations

from torch import Tensor

from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference.experts import Experts

from .config import ModelConfig
from .numerics import Numerics
from .step import Probe
from .weights import ExpertWeights


class FeedForward:
    """A gate, routed experts and one shared expert."""

    def __init__(
        self,
        config: ModelConfig,
        numerics: Numerics,
        layer_id: int,
        weights: ExpertWeights,
        operations: Operations,
    ) -> None:
        self._operations = operations
        self._config, self._numerics, self._layer_id, self._weights = config, numerics, layer_id, weights
        self.experts = Experts(weights.gate_up, weights.down, weights.shared_gate_up, weights.shared_down)

    def __call__(self, inputs_rows_dim: Tensor, image_mask: Tensor | None, probe: Probe | None) -> Tensor:
        config, weights, quantized = self._config, self._weights, self._numerics.quantized
        routing = self._operations.route_rows(
            inputs_rows_dim,
            weights.gate,
            weights.text_bias,
            weights.image_bias,
            image_mask,
            weights.top_k,
            config.routed_scaling_factor,
            self.experts,
            quantized=quantized,
        )
        if probe is not None:
            probe("experts", self._layer_id, routing.chosen)
            probe("expert_weights", self._layer_id, routing.shares)
        return self._operations.mix_experts(
            inputs_rows_dim, routing, self.experts, config.swiglu_limit, quantized=quantized
        )
