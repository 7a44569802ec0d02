"""Random weights that need no checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stepahead.engine.model.checkpoint.dummy import DummyReader
from stepahead.engine.model.checkpoint.reader import CheckpointReader
from stepahead.engine.model.checkpoint.writer import write_checkpoint

from .tiny_checkpoint import CONFIG, EXPERT, QUERY, SPECS


def test_dummy_weights_depend_on_seed_and_name_only() -> None:
    forward = {name: DummyReader(CONFIG, 5).read(name, torch.float32) for name in SPECS}
    reader = DummyReader(CONFIG, 5)
    for name in reversed(SPECS):
        assert torch.equal(reader.read(name, torch.float32), forward[name])
        assert forward[name].shape == SPECS[name].shape
    other = DummyReader(CONFIG, 6).read(QUERY, torch.float32)
    assert not torch.equal(other, forward[QUERY])
    assert not torch.equal(forward[QUERY], forward["layers.1.attn.wq_a.weight"])


def test_dummy_weights_are_sane() -> None:
    reader = DummyReader(CONFIG)
    read = {name: reader.read(name, torch.float32) for name in reader.names()}
    assert read["norm.weight"].mean().item() == pytest.approx(1, abs=0.1)
    assert read["layers.0.attn.attn_sink"].count_nonzero() > 0
    assert read["layers.0.ffn.gate.bias"].abs().max() > 0
    assert read["layers.0.hc_attn_fn"].std().item() == pytest.approx(0.02, rel=0.2)
    base = read["layers.1.hc_ffn_base"]
    assert base[:4].tolist() == [-3, 3, -3, -3]
    assert base[4:8].tolist() == [0] * 4
    assert base[8:].reshape(4, 4).diagonal().tolist() == [3] * 4
    x = torch.randn(64, 64)
    assert (x @ read[QUERY].T).std().item() == pytest.approx(1, rel=0.2)


def test_dummy_weights_are_what_a_checkpoint_of_them_holds(tmp_path: Path) -> None:
    dummy = DummyReader(CONFIG, 2)
    write_checkpoint(tmp_path / "out", CONFIG, lambda name: dummy.read(name, torch.float32))
    reader = CheckpointReader(tmp_path / "out")
    for name in dummy.names():
        assert torch.equal(reader.read(name, torch.float32), dummy.read(name, torch.float32)), name
    assert torch.equal(
        dummy.read_quantized(EXPERT).dequantize(torch.float32), dummy.read(EXPERT, torch.float32)
    )
    with pytest.raises(ValueError, match="stored unquantized"):
        dummy.read_quantized("norm.weight")
