"""Writing a checkpoint: sharded, complete or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stepahead.engine.model.checkpoint.errors import CheckpointError
from stepahead.engine.model.checkpoint.formats import fake_quantize, quantize
from stepahead.engine.model.checkpoint.index import INDEX_NAME
from stepahead.engine.model.checkpoint.reader import CheckpointReader
from stepahead.engine.model.checkpoint.storage import StorageKind, stored_tensor_count
from stepahead.engine.model.checkpoint.writer import write_checkpoint
from stepahead.engine.model.v41.config import load_config

from .tiny_checkpoint import CONFIG, QUERY, SPECS, WEIGHTS


def test_write_then_read_gives_the_fake_quantized_weights(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "out", CONFIG, WEIGHTS.items())
    reader = CheckpointReader(tmp_path / "out")
    reader.verify(SPECS)
    assert load_config(tmp_path / "out") == CONFIG
    for name, spec in SPECS.items():
        assert name in reader
        assert torch.equal(reader.read(name, torch.float32), fake_quantize(WEIGHTS[name], spec.kind)), name
    assert reader.unread() == ()


def test_shards_stay_below_their_limit_and_the_index_finds_everything(tmp_path: Path) -> None:
    limit = 100_000
    write_checkpoint(tmp_path / "out", CONFIG, lambda name: WEIGHTS[name], max_shard_bytes=limit)
    index = json.loads((tmp_path / "out" / INDEX_NAME).read_text())
    files = {file: load_file(tmp_path / "out" / file) for file in set(index["weight_map"].values())}
    count = len(files)
    assert count > 1
    assert set(files) == {f"model-{i + 1:05d}-of-{count:05d}.safetensors" for i in range(count)}
    assert all(sum(t.nbytes for t in tensors.values()) <= limit for tensors in files.values())
    assert sum(len(tensors) for tensors in files.values()) == stored_tensor_count(SPECS)
    assert index["metadata"]["total_size"] == sum(t.nbytes for f in files.values() for t in f.values())
    CheckpointReader(tmp_path / "out").verify(SPECS)


def without(name: str) -> Callable[[str], torch.Tensor | None]:
    return lambda asked: None if asked == name else WEIGHTS[asked]


def test_the_writer_reports_all_faults_and_leaves_the_target_alone(tmp_path: Path) -> None:
    target = tmp_path / "out"
    write_checkpoint(target, CONFIG, WEIGHTS.items())
    before = {file.name: file.read_bytes() for file in target.iterdir()}
    bad = dict(WEIGHTS)
    del bad["norm.weight"]
    bad["head.weight"] = WEIGHTS["head.weight"][:3]
    bad["embed.weight"] = WEIGHTS["embed.weight"] * torch.nan
    bad[QUERY] = quantize(WEIGHTS[QUERY], StorageKind.FP8_ROWS)  # type: ignore[assignment]
    bad["surprise"] = torch.zeros(1)
    pairs = [*bad.items(), ("head.weight", WEIGHTS["head.weight"])]
    with pytest.raises(CheckpointError) as caught:
        write_checkpoint(target, CONFIG, pairs)
    problems = caught.value.problems
    assert problems.missing == ["norm.weight"]
    assert problems.misshapen == ["head.weight: [3, 64], expected [320, 64]"]
    assert problems.not_finite == ["embed.weight"]
    assert [entry.split(":")[0] for entry in problems.wrong_dtype] == [QUERY]
    assert problems.extra == ["surprise"]
    assert problems.duplicate == ["head.weight"]
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


def test_optional_weights_may_be_absent(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "out", CONFIG, without("image_start"))
    reader = CheckpointReader(tmp_path / "out")
    reader.verify(SPECS)
    assert "image_start" not in reader


def test_rewriting_replaces_the_shards_and_keeps_other_files(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, CONFIG, WEIGHTS.items(), max_shard_bytes=100_000)
    (tmp_path / "tokenizer.json").write_text("{}")
    write_checkpoint(tmp_path, CONFIG, WEIGHTS.items())
    names = {file.name for file in tmp_path.iterdir()}
    assert names == {"config.json", INDEX_NAME, "model-00001-of-00001.safetensors", "tokenizer.json"}
    CheckpointReader(tmp_path).verify(SPECS)


def test_quantized_weights_are_stored_as_they_are(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    write_checkpoint(first, CONFIG, WEIGHTS.items())
    reader = CheckpointReader(first)
    write_checkpoint(second, CONFIG, lambda name: reader.read_stored(name, SPECS[name]))
    for file in first.iterdir():
        assert (second / file.name).read_bytes() == file.read_bytes()


def test_progress_is_reported_for_every_weight(tmp_path: Path) -> None:
    calls: list[tuple[int, int, str]] = []
    write_checkpoint(tmp_path / "out", CONFIG, WEIGHTS.items(), on_tensor=lambda *call: calls.append(call))
    assert calls == [(i + 1, len(SPECS), name) for i, name in enumerate(SPECS)]
