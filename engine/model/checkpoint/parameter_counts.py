"""How many parameters a model has, part by part, from its layout alone."""

from __future__ import annotations

from math import prod

from ..v41.config import ModelConfig
from .layout import tensor_specs

_TRUNK_EXPERTS = "routed experts, trunk"
_DRAFT_EXPERTS = "routed experts, drafts"
_OTHER = "norms, sinks and biases"

# The first fragment found in a name decides.
_PARTS: tuple[tuple[str, str], ...] = (
    ("engram.embed.", "engram tables"),
    ("engram.", "engram projections"),
    ("markov_head.", "draft heads"),
    ("confidence_head.", "draft heads"),
    ("main_proj.", "draft heads"),
    ("vision.", "vision tower"),
    ("aligner.", "vision projector"),
    ("embed.weight", "embedding and head"),
    ("head.weight", "embedding and head"),
    ("hc_", "hyper-connections"),
    ("shared_experts.", "shared experts"),
    ("ffn.gate.", "expert gates"),
    ("compressor.", "compressors and indexers"),
    ("indexer.", "compressors and indexers"),
    ("attn.w", "attention"),
)


def parameter_counts(config: ModelConfig) -> dict[str, int]:
    """Parameters of every part the model has, largest first. Optional tensors are not counted."""
    counts: dict[str, int] = {}
    for name, spec in tensor_specs(config).items():
        if not spec.optional:
            part = _part(name)
            counts[part] = counts.get(part, 0) + prod(spec.shape)
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _part(name: str) -> str:
    if ".experts." in name:
        return _DRAFT_EXPERTS if name.startswith("mtp.") else _TRUNK_EXPERTS
    return next((part for fragment, part in _PARTS if fragment in name), _OTHER)
