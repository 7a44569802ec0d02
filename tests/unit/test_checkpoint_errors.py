"""Everything wrong with a checkpoint is reported by name, in one error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from stepahead.engine.model.checkpoint.errors import CheckpointError
from stepahead.engine.model.checkpoint.index import INDEX_NAME
from stepahead.engine.model.checkpoint.reader import CheckpointReader

from .tiny_checkpoint import SPECS, Stored, save, stored_tensors


@pytest.fixture(scope="module")
def stored() -> Stored:
    return stored_tensors()


def problems_of(folder: Path) -> dict[str, list[str]]:
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(folder).verify(SPECS)
    problems = caught.value.problems
    return {kind: getattr(problems, kind) for kind in problems.__struct_fields__ if getattr(problems, kind)}


def test_invariant_32_and_33_everything_wrong_is_reported_in_one_error(
    tmp_path: Path, stored: Stored
) -> None:
    broken = dict(stored)
    del broken["norm.weight"], broken["layers.2.attn.wkv.scale"]
    broken["layers.7.attn_norm.weight"] = torch.ones(64, dtype=torch.bfloat16)
    broken["head.weight"] = stored["head.weight"][:5]
    broken["layers.0.attn.attn_sink"] = stored["layers.0.attn.attn_sink"].bfloat16()
    scale = stored["layers.1.ffn.experts.1.w2.scale"].view(torch.uint8).clone()
    scale[3, 1] = 0xFF
    broken["layers.1.ffn.experts.1.w2.scale"] = scale.view(torch.float8_e8m0fnu)
    assert problems_of(save(tmp_path, broken)) == {
        "missing": ["norm.weight", "layers.2.attn.wkv.scale"],
        "extra": ["layers.7.attn_norm.weight"],
        "misshapen": ["head.weight: [5, 64], expected [320, 64]"],
        "wrong_dtype": ["layers.0.attn.attn_sink: BF16, expected F32"],
        "nan_scale": ["layers.1.ffn.experts.1.w2.scale"],
    }


def test_the_message_shows_names_and_stays_readable(tmp_path: Path, stored: Stored) -> None:
    few = {name: stored[name] for name in list(stored)[:4]}
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(save(tmp_path, few)).verify(SPECS)
    text = str(caught.value)
    missing = caught.value.problems.missing
    assert len(missing) > 20
    assert f"missing ({len(missing)})" in text
    assert f"... and {len(missing) - 20} more" in text
    assert missing[0] in text


def test_a_missing_tensor_is_named_by_read(tmp_path: Path, stored: Stored) -> None:
    reader = CheckpointReader(save(tmp_path, stored))
    assert "nothing.weight" not in reader
    with pytest.raises(CheckpointError, match=r"missing \(1\):\n    nothing\.weight"):
        reader.read("nothing.weight", torch.float32)


def test_no_checkpoint_at_all(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no model\.safetensors\.index\.json"):
        CheckpointReader(tmp_path)


def test_an_index_that_lies_is_reported(tmp_path: Path, stored: Stored) -> None:
    save(tmp_path, stored)
    weight_map = {
        **dict.fromkeys(stored, "model.safetensors"),
        "ghost": "model.safetensors",
        "lost": "gone.safetensors",
    }
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(tmp_path)
    assert caught.value.problems.missing == ["ghost: listed in the index, absent from model.safetensors"]
    assert caught.value.problems.unreadable[0].startswith("gone.safetensors:")


@pytest.mark.parametrize("text", ["{", '{"weight_map": 3}'])
def test_a_broken_index_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX_NAME).write_text(text)
    with pytest.raises(CheckpointError, match=r"unreadable \(1\)"):
        CheckpointReader(tmp_path)


def test_a_truncated_file_is_reported(tmp_path: Path, stored: Stored) -> None:
    file = save(tmp_path, stored) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"unreadable \(1\):\n    model\.safetensors"):
        CheckpointReader(tmp_path)


def test_the_same_tensor_with_and_without_prefix_is_a_duplicate(tmp_path: Path) -> None:
    save(tmp_path, {"norm.weight": torch.ones(2), "model.norm.weight": torch.ones(2)})
    with pytest.raises(CheckpointError, match=r"duplicate \(1\):\n    norm\.weight"):
        CheckpointReader(tmp_path)
