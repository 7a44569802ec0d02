"""The trainable weights: named as in the checkpoint, except that a layer's experts are stacked.

The list of tensors, their shapes and their storage come from the checkpoint layout itself, so a weight that
the published format does not have cannot be trained by accident, and one that it has cannot be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from stepahead.engine.model.checkpoint.layout import tensor_specs
from stepahead.engine.model.checkpoint.storage import StorageKind, TensorSpec
from stepahead.engine.model.v41.config import ModelConfig

_EXPERT = re.compile(r"^(.*\.experts)\.(\d+)\.(w[123]\.weight)$")
DRAFT_PREFIX = "mtp."
# The hyper-connection start of model_spec 2.2: constant mixes that let every stream pass.
_BASE_PRE, _BASE_COMB, _SCALE = 3.0, 3.0, 0.01
_RESIDUAL_OUTPUTS = ("wo_b.weight", "w2.weight")


def stacked_specs(config: ModelConfig) -> dict[str, TensorSpec]:
    """Specs by trained name: the experts of a layer are one `[experts, out, in]` weight."""
    specs: dict[str, TensorSpec] = {}
    for name, spec in tensor_specs(config).items():
        if spec.optional:
            continue
        match = _EXPERT.match(name)
        if match is None:
            specs[name] = spec
            continue
        stacked = f"{match[1]}.{match[3]}"
        count = specs[stacked].shape[0] + 1 if stacked in specs else 1
        specs[stacked] = TensorSpec((count, *spec.shape), spec.kind)
    return specs


def unstack(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Trained names back to checkpoint names."""
    for name, weight in weights.items():
        if ".experts.w" not in name:
            yield name, weight
            continue
        prefix, matrix = name.rsplit(".experts.", 1)
        for expert, value in enumerate(weight):
            yield f"{prefix}.experts.{expert}.{matrix}", value


def initial_weights(config: ModelConfig, seed: int, device: torch.device) -> dict[str, Tensor]:
    """Seeded float32 weights of a new model, all requiring gradients except the routing biases."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name, spec in stacked_specs(config).items():
        value = _initial(config, name, spec, generator).to(device)
        weights[name] = value.requires_grad_(not name.endswith(("gate.bias", "gate.bias_vl")))
    return weights


def _initial(config: ModelConfig, name: str, spec: TensorSpec, generator: torch.Generator) -> Tensor:
    shape = spec.shape
    if "hc_" in name:
        return _initial_mix(config, name, shape)
    if name.endswith(("gate.bias", "gate.bias_vl", "attn_sink")):
        return torch.zeros(shape)
    if len(shape) == 1 or name.endswith(("q_weight", "k_weight")):
        return torch.ones(shape)
    std = {"embed.weight": 0.5, "head.weight": 0.02}.get(name, float(shape[-1] ** -0.5))
    if name.endswith("engram.embed.weight"):
        std = 0.1
    elif name.endswith(("markov_head.head.weight", "confidence_head.proj.weight")):
        std = 0.01
    elif name.endswith(("gate.weight", *_RESIDUAL_OUTPUTS)):
        std *= 0.3
    return torch.randn(shape, generator=generator) * std


def _initial_mix(config: ModelConfig, name: str, shape: tuple[int, ...]) -> Tensor:
    copies = config.hc_mult
    if name.endswith("_fn"):
        return torch.zeros(shape)
    if name.endswith("_scale"):
        return torch.full(shape, _SCALE)
    prefix, number = name.split(".")[:2]
    layer_id = int(number) + (config.num_hidden_layers if prefix == "mtp" else 0)
    base = torch.zeros(shape)
    base[:copies] = -_BASE_PRE
    base[layer_id % copies] = _BASE_PRE
    base[2 * copies :] = (torch.eye(copies) * 2 * _BASE_COMB - _BASE_COMB).flatten()
    return base


_WIDE = ("embed.weight", "gate.weight", "q_weight", "k_weight")


def in_compute_type(name: str, spec: TensorSpec) -> bool:
    """Whether a weight multiplies activations in the compute type; tables, routing, vectors stay float32."""
    return len(spec.shape) > 1 and spec.kind is not StorageKind.FP32 and not name.endswith(_WIDE)
