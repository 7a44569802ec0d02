"""The mixture-of-experts sublayer (model_spec 2.9)."""

from __future__ import annotations

import torch
from torch import Tensor

from stepahead.devices.kernels.operations import Operations
from stepahead.devices.kernels.reference import experts

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

    def __call__(self, inputs_rows_dim: Tensor, image_mask: Tensor | None, probe: Probe | None) -> Tensor:
        weights = self._weights
        scores = self._operations.gate_scores(
            self._operations.wide_linear(inputs_rows_dim, weights.gate.to(self._numerics.wide))
        )
        chosen, shares = self._operations.route(
            scores, self._bias(image_mask), weights.top_k, self._config.routed_scaling_factor
        )
        if probe is not None:
            probe("experts", self._layer_id, chosen)
            probe("expert_weights", self._layer_id, shares)
        narrow = self._numerics.matmul_input(inputs_rows_dim)
        routed = self._grouped if experts.has_grouped_product(narrow) else self._every_expert
        return (self._shared(narrow) + routed(narrow, chosen, shares)).to(self._numerics.dtype)

    def _bias(self, image_mask: Tensor | None) -> Tensor:
        if image_mask is None:
            return self._weights.text_bias
        return torch.where(image_mask.unsqueeze(1), self._weights.image_bias, self._weights.text_bias)

    def _hidden(self, gate_up: Tensor, shares: Tensor | None) -> Tensor:
        """Gated activation; the routing weight enters before `w2`, where low precision can see it."""
        hidden = self._operations.swiglu(gate_up.to(self._numerics.wide), self._config.swiglu_limit)
        if shares is not None:
            hidden = hidden * shares
        return self._numerics.matmul_input(hidden.to(self._numerics.dtype))

    def _shared(self, inputs: Tensor) -> Tensor:
        hidden = self._hidden(self._operations.linear(inputs, self._weights.shared_gate_up), None)
        return self._operations.linear(hidden, self._weights.shared_down).to(self._numerics.wide)

    def _grouped(self, inputs: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        order = experts.ExpertOrder(chosen, self._weights.gate_up.shape[0])
        gate_up = experts.grouped_linear(order.grouped(inputs), self._weights.gate_up, order.ends)
        hidden = self._hidden(gate_up, shares.reshape(-1, 1)[order.order])
        down = experts.grouped_linear(hidden, self._weights.down, order.ends)
        return order.ungrouped(down).to(self._numerics.wide).sum(1)

    def _every_expert(self, inputs: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """All experts on all rows; a share of zero removes what was not chosen."""
        count = self._weights.gate_up.shape[0]
        spread = shares.new_zeros(shares.shape[0], count).scatter(1, chosen, shares)
        gate_up = torch.einsum("nd,eid->eni", inputs, self._weights.gate_up)
        hidden = self._hidden(gate_up, spread.t().unsqueeze(-1))
        return torch.einsum("eni,edi->nd", hidden, self._weights.down).to(self._numerics.wide)
