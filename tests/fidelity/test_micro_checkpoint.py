"""The checkpoint of the golden vectors: our layout lists it exactly, our formats keep its values."""

from __future__ import annotations

from pathlib import Path

import torch

from stepahead.engine.model.checkpoint.formats import quantize
from stepahead.engine.model.checkpoint.layout import tensor_specs
from stepahead.engine.model.checkpoint.reader import CheckpointReader
from stepahead.engine.model.checkpoint.storage import stored_tensor_count
from stepahead.engine.model.v41.config import load_config

MICRO = Path(__file__).parent / "data" / "micro" / "checkpoint"


def test_the_layout_lists_every_tensor_of_the_checkpoint() -> None:
    specs = tensor_specs(load_config(MICRO))
    CheckpointReader(MICRO).verify(specs)
    assert stored_tensor_count(specs) == 993


def test_every_weight_is_consumed_once_and_its_kind_recognised() -> None:
    specs = tensor_specs(load_config(MICRO))
    reader = CheckpointReader(MICRO)
    for name, spec in specs.items():
        if spec.kind.is_quantized:
            weight = reader.read_quantized(name)
            assert (weight.kind, weight.shape) == (spec.kind, spec.shape), name
        else:
            assert tuple(reader.read(name, torch.float32).shape) == spec.shape, name
    assert reader.unread() == ()


def test_requantizing_the_published_weights_changes_nothing() -> None:
    specs = tensor_specs(load_config(MICRO))
    reader = CheckpointReader(MICRO)
    for name, spec in specs.items():
        if spec.kind.is_quantized:
            published = reader.read_quantized(name).dequantize(torch.float32)
            assert torch.equal(quantize(published, spec.kind).dequantize(torch.float32), published), name
