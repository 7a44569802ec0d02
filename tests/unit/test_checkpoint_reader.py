"""Reading every legal form of a checkpoint, each weight once."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stepahead.engine.model.checkpoint.dummy import DummyReader
from stepahead.engine.model.checkpoint.errors import CheckpointError
from stepahead.engine.model.checkpoint.formats import QuantizedTensor, fake_quantize, quantize
from stepahead.engine.model.checkpoint.index import INDEX_NAME
from stepahead.engine.model.checkpoint.layout import tensor_specs
from stepahead.engine.model.checkpoint.reader import CheckpointReader
from stepahead.engine.model.checkpoint.storage import StorageKind, stored_tensor_count
from stepahead.engine.model.checkpoint.writer import write_checkpoint
from stepahead.engine.model.v41.config import parse_config

from .model_documents import nano_document
from .tiny_checkpoint import EXPERT, QUERY, SPECS, WEIGHTS, Stored, save, stored_tensors


@pytest.fixture(scope="module")
def stored() -> Stored:
    return stored_tensors()


def test_invariant_32_the_nano_checkpoint_has_its_tensors_and_each_is_consumed_once(tmp_path: Path) -> None:
    config = parse_config(nano_document())
    specs = {name: spec for name, spec in tensor_specs(config).items() if not spec.optional}
    dummy = DummyReader(config)
    write_checkpoint(tmp_path / "nano", config, ((name, dummy.read(name, torch.bfloat16)) for name in specs))
    reader = CheckpointReader(tmp_path / "nano")
    reader.verify(tensor_specs(config))
    index = json.loads((tmp_path / "nano" / INDEX_NAME).read_text())
    assert len(index["weight_map"]) == stored_tensor_count(specs) == 1_542
    for name in specs:
        reader.read(name, torch.bfloat16)
    assert reader.unread() == ()
    with pytest.raises(CheckpointError, match="already read"):
        reader.read("embed.weight", torch.bfloat16)


def test_invariant_32_prefix_and_scales_in_another_shard_are_accepted(tmp_path: Path, stored: Stored) -> None:
    weights = {f"model.{n}": t for n, t in stored.items() if not n.endswith(".scale")}
    scales = {f"model.{n}": t for n, t in stored.items() if n.endswith(".scale")}
    save_file(weights, tmp_path / "a.safetensors")
    save_file(scales, tmp_path / "b.safetensors")
    weight_map = {**dict.fromkeys(weights, "a.safetensors"), **dict.fromkeys(scales, "b.safetensors")}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    reader = CheckpointReader(tmp_path)
    reader.verify(SPECS)
    assert torch.equal(reader.read(EXPERT, torch.float32), fake_quantize(WEIGHTS[EXPERT], StorageKind.MXFP4))


def test_one_file_without_an_index_is_a_checkpoint(tmp_path: Path, stored: Stored) -> None:
    save(tmp_path, stored)
    for path in (tmp_path, tmp_path / "model.safetensors"):
        CheckpointReader(path).verify(SPECS)


def test_read_quantized_keeps_the_bytes(tmp_path: Path, stored: Stored) -> None:
    reader = CheckpointReader(save(tmp_path, stored))
    expert, query = reader.read_quantized(EXPERT), reader.read_quantized(QUERY)
    assert (expert.kind, query.kind) == (StorageKind.MXFP4, StorageKind.FP8_BLOCK)
    assert torch.equal(expert.payload.view(torch.int8), stored[EXPERT])
    assert torch.equal(query.payload.view(torch.uint8), stored[QUERY].view(torch.uint8))
    with pytest.raises(ValueError, match=r"norm\.weight is stored unquantized"):
        reader.read_quantized("norm.weight")


def test_engram_rows_are_recognised(tmp_path: Path) -> None:
    rows = quantize(torch.randn(70, 32), StorageKind.FP8_ROWS)
    name = "layers.1.engram.embed"
    save(tmp_path, {f"{name}.weight": rows.payload, f"{name}.scale": rows.scales.view(torch.float8_e8m0fnu)})
    assert CheckpointReader(tmp_path).read_quantized(f"{name}.weight").kind is StorageKind.FP8_ROWS


def test_reading_maps_the_file_instead_of_loading_it(tmp_path: Path, stored: Stored) -> None:
    save(tmp_path, stored)
    reader = CheckpointReader(tmp_path)
    start = reader.read("embed.weight", torch.bfloat16).data_ptr()
    maps = [line.split() for line in Path(f"/proc/{os.getpid()}/maps").read_text().splitlines()]
    ranges = [m[0].split("-") for m in maps if m[-1] == str(tmp_path / "model.safetensors")]
    assert any(int(low, 16) <= start < int(high, 16) for low, high in ranges)


def test_unquantized_weights_pass_only_when_allowed(tmp_path: Path, stored: Stored) -> None:
    plain = {name: tensor for name, tensor in stored.items() if not name.endswith(".scale")}
    plain |= {name: WEIGHTS[name].bfloat16() for name, spec in SPECS.items() if spec.kind.is_quantized}
    reader = CheckpointReader(save(tmp_path, plain))
    reader.verify(SPECS, allow_unquantized=True)
    with pytest.raises(CheckpointError) as caught:
        reader.verify(SPECS)
    assert "layers.0.attn.wq_a.scale" in caught.value.problems.missing
    requantized = reader.read_stored(EXPERT, SPECS[EXPERT])
    assert isinstance(requantized, QuantizedTensor)
    assert torch.equal(requantized.payload, quantize(WEIGHTS[EXPERT].bfloat16(), StorageKind.MXFP4).payload)


def test_tied_draft_copies_are_ignored(tmp_path: Path, stored: Stored) -> None:
    copies = {f"mtp.{i}.{part}.weight": torch.ones(2, 2) for i in (0, 2) for part in ("embed", "head")}
    CheckpointReader(save(tmp_path, {**stored, **copies})).verify(SPECS)


def test_a_convolution_shaped_patch_weight_is_read_flat(tmp_path: Path) -> None:
    config = parse_config(nano_document(vision=True))
    name = "vision.patch_embed.proj.weight"
    conv = torch.arange(64 * 588).reshape(64, 3, 14, 14).bfloat16()
    save(tmp_path, {name: conv})
    reader = CheckpointReader(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        reader.verify(tensor_specs(config))
    assert caught.value.problems.misshapen == []
    assert torch.equal(reader.read(name, torch.bfloat16), conv.reshape(64, 588))
