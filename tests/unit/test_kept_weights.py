"""Weights that stay as the checkpoint stores them: the same bytes, the same values, less memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from stepahead.devices.kernels.quantized import QuantizedWeight, WeightFormat, concatenate
from stepahead.engine.model.checkpoint.dummy import DummyReader
from stepahead.engine.model.checkpoint.formats import QuantizedTensor, quantize
from stepahead.engine.model.checkpoint.reader import CheckpointReader
from stepahead.engine.model.checkpoint.storage import StorageKind
from stepahead.engine.model.checkpoint.writer import write_checkpoint
from stepahead.engine.model.opening import describe, load_model
from stepahead.engine.model.v41.batch import SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import exact, parity
from stepahead.engine.model.v41.weights import load_weights, weight_bytes
from tests.fidelity.configurations import small_config

from .tiny_checkpoint import CONFIG, SPECS, WEIGHTS, save, stored_tensors

CPU = torch.device("cpu")
KINDS = [StorageKind.FP8_BLOCK, StorageKind.MXFP4]


def stored(rows: int, columns: int, kind: StorageKind) -> QuantizedTensor:
    return quantize(torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)), kind)


def leaves(weights: object) -> Iterator[tuple[str, object]]:
    """Every weight of a model by a path of names."""
    if isinstance(weights, tuple):
        for number, part in enumerate(weights):
            yield from ((f"{number}.{name}", leaf) for name, leaf in leaves(part))
    elif dataclasses.is_dataclass(weights) and not isinstance(weights, QuantizedWeight):
        for field in dataclasses.fields(weights):
            yield from ((f"{field.name}.{name}", leaf) for name, leaf in leaves(getattr(weights, field.name)))
    else:
        yield "", weights


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_weight_is_the_stored_bytes_and_expands_to_the_same_values(kind: StorageKind) -> None:
    original = stored(64, 96, kind)
    kept = original.kept()
    assert kept.shape == (64, 96)
    assert kept.payload.data_ptr() == original.payload.data_ptr()
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert torch.equal(kept.dequantize(dtype), original.dequantize(dtype))
    assert kept.nbytes < 64 * 96 * 1.04


@pytest.mark.parametrize("kind", KINDS)
def test_rows_stacks_and_sums_of_matrices_are_views_of_the_same_values(kind: StorageKind) -> None:
    kept = stored(96, 64, kind).kept()
    whole = kept.dequantize(torch.float32)
    assert torch.equal(kept[32:64].dequantize(torch.float32), whole[32:64])
    assert torch.equal(kept.view(3, 32, 64).dequantize(torch.float32), whole.view(3, 32, 64))
    both = concatenate([kept[:32], kept[32:]])
    assert torch.equal(both.dequantize(torch.float32), whole)


def test_blocks_are_not_cut() -> None:
    kept = stored(96, 64, StorageKind.FP8_BLOCK).kept()
    with pytest.raises(ValueError, match="cut a block"):
        kept[16:64]
    with pytest.raises(ValueError, match="whole blocks"):
        kept.view(6, 16, 64)
    with pytest.raises(ValueError, match="whole blocks"):
        concatenate([stored(40, 64, StorageKind.FP8_BLOCK).kept(), kept])
    with pytest.raises(ValueError, match="expected"):
        QuantizedWeight(kept.payload, kept.scales[:2], WeightFormat.FP8_BLOCK)


def test_what_no_kernel_could_expand_exactly_is_refused() -> None:
    original = stored(32, 32, StorageKind.FP8_BLOCK)
    huge = QuantizedTensor(
        original.payload, torch.full((1, 1), 135, dtype=torch.uint8), original.kind, (32, 32)
    )
    with pytest.raises(ValueError, match=r"2 \*\* 8 is above"):
        huge.kept()
    with pytest.raises(ValueError, match="looked up"):
        stored(32, 32, StorageKind.FP8_ROWS).kept()


def test_a_model_of_kept_weights_computes_bit_for_bit_what_the_expanded_one_does() -> None:
    config = small_config()
    reader = DummyReader(config, seed=1)
    for numerics in (exact(torch.float32), parity()):
        expanded = load_weights(config, reader, numerics, CPU)
        kept = load_weights(config, reader, numerics, CPU, keep_quantized=True)
        logits = []
        for weights in (expanded, kept):
            model = Model(config, weights, numerics)
            caches = model.new_caches(CacheShape(blocks=3, state_slots=2, max_rows=16))
            chunk = SequenceChunk(list(range(3, 15)), 0, 1, [1])
            batch = build_batch([chunk], CPU, ngram=config.engram_max_ngram_size)
            logits.append(model.forward(batch, caches).logits)
        assert torch.equal(*logits)
        assert weight_bytes(kept) < weight_bytes(expanded)


def test_a_checkpoint_survives_being_kept(tmp_path: Path) -> None:
    """File to memory to file: not a byte of a quantized weight changes."""
    source = tmp_path / "source"
    source.mkdir()
    tensors = stored_tensors()
    save(source, tensors)
    kept = load_weights(CONFIG, CheckpointReader(source), exact(), CPU, keep_quantized=True)
    gate_up = kept.blocks[1].ffn.gate_up
    assert isinstance(gate_up, QuantizedWeight)
    inner = CONFIG.moe_intermediate_size
    assert torch.equal(
        gate_up.payload[0, :inner].view(torch.int8), tensors["layers.1.ffn.experts.0.w1.weight"]
    )
    reader = CheckpointReader(source)
    write_checkpoint(tmp_path / "copy", CONFIG, lambda name: _read(reader, name))
    copy = CheckpointReader(tmp_path / "copy")
    for name, spec in SPECS.items():
        if spec.kind.is_quantized and name in copy:
            again = copy.read_quantized(name)
            first = quantize(WEIGHTS[name], spec.kind)
            assert torch.equal(again.payload.view(torch.uint8), first.payload.view(torch.uint8)), name
            assert torch.equal(again.scales, first.scales), name


def _read(reader: CheckpointReader, name: str) -> Tensor | QuantizedTensor | None:
    return reader.read_stored(name, SPECS[name]) if name in reader else None


def test_everything_that_is_multiplied_by_stays_quantized_and_nothing_else() -> None:
    kept = load_weights(CONFIG, DummyReader(CONFIG), exact(), CPU, keep_quantized=True)
    quantized = {
        name.rstrip(".").split(".")[-1] for name, leaf in leaves(kept) if isinstance(leaf, QuantizedWeight)
    }
    always = {
        "query_a_kv",
        "query_b",
        "output_a",
        "output_b",
        "gate_up",
        "down",
        "shared_gate_up",
        "shared_down",
    }
    assert always <= quantized <= always | {"query", "projection", "main_projection"}


def test_the_built_in_model_opens_either_way_and_says_the_same() -> None:
    described = describe(None, exact(torch.float32))
    expanded, kept = (load_model(described, CPU, keep_quantized=keep) for keep in (False, True))
    assert weight_bytes(kept.weights) < weight_bytes(expanded.weights) / 2
    logits = []
    for model in (expanded, kept):
        caches = model.new_caches(CacheShape(blocks=3, state_slots=2, max_rows=16))
        chunk = SequenceChunk(list(range(300, 312)), 0, 1, [1])
        batch = build_batch([chunk], CPU, ngram=model.config.engram_max_ngram_size)
        logits.append(model.forward(batch, caches).logits)
    assert torch.equal(*logits)
