"""One tiny model, its weights, and its checkpoint as a dictionary that a test can damage."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from stepahead.engine.model.checkpoint.dummy import DummyReader
from stepahead.engine.model.checkpoint.formats import quantize
from stepahead.engine.model.checkpoint.layout import tensor_specs
from stepahead.engine.model.checkpoint.storage import StorageKind, scale_name
from stepahead.engine.model.v41.config import parse_config

from .model_documents import tiny_document

CONFIG = parse_config(tiny_document())
SPECS = tensor_specs(CONFIG)
WEIGHTS = {name: DummyReader(CONFIG, seed=1).read(name, torch.float32) for name in SPECS}
EXPERT = "layers.1.ffn.experts.0.w1.weight"
QUERY = "layers.0.attn.wq_a.weight"

Stored = dict[str, torch.Tensor]


def stored_tensors() -> Stored:
    """Every file tensor of the tiny model, in file order."""
    tensors: Stored = {}
    for name, spec in SPECS.items():
        weight = WEIGHTS[name]
        if spec.kind.is_quantized:
            quantized = quantize(weight, spec.kind)
            is_fp4 = spec.kind is StorageKind.MXFP4
            tensors[name] = quantized.payload.view(torch.int8) if is_fp4 else quantized.payload
            tensors[scale_name(name)] = quantized.scales.view(torch.float8_e8m0fnu)
        else:
            tensors[name] = weight if spec.kind is StorageKind.FP32 else weight.bfloat16()
    return tensors


def save(folder: Path, tensors: Stored) -> Path:
    """Write `tensors` as the single file of a checkpoint in `folder`."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder
