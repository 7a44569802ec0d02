"""`python -m stepahead convert`: re-shard, quantize, and keep what is already quantized."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stepahead.engine.commands import convert
from stepahead.engine.commands._progress import tensor_progress
from stepahead.engine.errors import InvalidParameterError
from stepahead.engine.model.checkpoint.errors import CheckpointError
from stepahead.engine.model.checkpoint.formats import fake_quantize
from stepahead.engine.model.checkpoint.reader import CheckpointReader
from stepahead.engine.model.checkpoint.writer import write_checkpoint

from .tiny_checkpoint import CONFIG, SPECS, WEIGHTS


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    convert.add_arguments(parser)
    return convert.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "source", CONFIG, WEIGHTS.items())
    (tmp_path / "source" / "tokenizer.json").write_text("{}")
    (tmp_path / "source" / "notes.txt").write_text("private")
    return tmp_path / "source"


def assert_same_weights(path: Path) -> None:
    reader = CheckpointReader(path)
    reader.verify(SPECS)
    for name, spec in SPECS.items():
        assert torch.equal(reader.read(name, torch.float32), fake_quantize(WEIGHTS[name], spec.kind)), name


@pytest.mark.parametrize("option", [[], ["--requantize"]])
def test_convert_reshards(source: Path, tmp_path: Path, option: list[str]) -> None:
    target = tmp_path / "target"
    assert run(source, target, "--max-shard-size", "100KB", *option) == 0
    assert len(list(target.glob("model-*.safetensors"))) > 1
    assert (target / "tokenizer.json").read_text() == "{}"
    assert not (target / "notes.txt").exists()
    assert_same_weights(target)


def test_convert_in_place(source: Path) -> None:
    run(source, source, "--max-shard-size", "100KB")
    assert (source / "notes.txt").exists()
    assert_same_weights(source)


def test_convert_quantizes_plain_floats(source: Path, tmp_path: Path) -> None:
    for file in source.glob("model*"):
        file.unlink()
    plain = {
        name: WEIGHTS[name]
        if spec.kind.is_quantized or spec.kind.value == "fp32"
        else WEIGHTS[name].bfloat16()
        for name, spec in SPECS.items()
    }
    save_file(plain, source / "model.safetensors")
    run(source, tmp_path / "target")
    assert_same_weights(tmp_path / "target")


def test_a_faulty_source_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    save_file({"norm.weight": torch.ones(3)}, source / "model.safetensors")
    for file in source.glob("model*.json"):
        file.unlink()
    for file in source.glob("model-*"):
        file.unlink()
    with pytest.raises(CheckpointError, match="misshapen"):
        run(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_optional_vectors_stay_absent(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a", CONFIG, lambda name: None if "image" in name else WEIGHTS[name])
    run(tmp_path / "a", tmp_path / "b")
    assert "image_end" not in CheckpointReader(tmp_path / "b")


def test_piped_progress_is_a_few_plain_lines(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(source, tmp_path / "target")
    output = capsys.readouterr()
    lines = output.err.splitlines()
    assert len(lines) == 10
    assert lines[-1] == f"converting: {len(SPECS)}/{len(SPECS)} tensors"
    assert output.out == f"wrote {tmp_path / 'target'}\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with tensor_progress("converting", stream) as on_tensor:
        for done in range(1, 6):
            on_tensor(done, 5, "norm.weight")
    text = stream.getvalue()
    assert "converting" in text
    assert "5/5" in text


@pytest.mark.parametrize(
    ("text", "size"), [("1000", 1000), ("5GB", 5_000_000_000), ("1.5 mb", 1_500_000), ("2k", 2000)]
)
def test_sizes(text: str, size: int) -> None:
    assert convert.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1GB", "5PB", "many"])
def test_a_wrong_size_says_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidParameterError, match="a positive size such as 500MB"):
        convert.parse_size(text)
