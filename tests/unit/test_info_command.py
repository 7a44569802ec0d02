"""`python -m stepahead info`: roles, parameters and cache sizes of a model."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from stepahead.engine.commands import info
from stepahead.engine.model.checkpoint.parameter_counts import parameter_counts
from stepahead.engine.model.v41.config import ConfigError, parse_config

from .model_documents import nano_document, real_document, tiny_document


def test_parameters_of_the_nano_model() -> None:
    counts = parameter_counts(parse_config(nano_document()))
    assert counts["routed experts, trunk"] == 7_864_320
    assert counts["routed experts, drafts"] == 1_179_648
    assert counts["engram tables"] == 398_656
    assert counts["embedding and head"] == 262_144
    assert sum(counts.values()) == 13_594_518


def test_parameters_of_the_published_model() -> None:
    counts = parameter_counts(parse_config(real_document()))
    engram = counts["engram tables"] + counts["engram projections"]
    drafts = counts["routed experts, drafts"]
    assert engram == pytest.approx(196e9, rel=0.01)
    assert sum(counts.values()) - engram - drafts == pytest.approx(552e9, rel=0.005)


def test_parts_that_are_off_are_not_listed() -> None:
    counts = parameter_counts(parse_config(tiny_document()))
    assert not {"engram tables", "draft heads", "vision tower"} & set(counts)


def rows_of(capsys: pytest.CaptureFixture[str], path: Path, document: dict[str, Any]) -> dict[str, str]:
    """What `info` prints, by first column."""
    path.write_text(json.dumps(document))
    parser = argparse.ArgumentParser()
    info.add_arguments(parser)
    assert info.run(parser.parse_args([str(path)])) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    return {line.split("  ")[0]: line for line in lines}


def test_info_prints_the_published_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = rows_of(capsys, tmp_path / "config.json", real_document())
    assert rows["blocks, per token, all layers"].endswith(" 890 B")
    assert rows["compressed key-value entry"].endswith(" 288 B")
    assert rows["indexer key entry"].endswith(" 68 B")
    assert rows["window entry, per layer"].endswith(" 528 B")
    assert rows["24"].split() == [
        *("24", "1", "reindex", "20", "20", "24", "restricted", "to", "candidates,", "consumer"),
    ]
    assert rows["42"].split() == ["42", "0", "window", "-", "-", "-", "draft"]
    assert rows["vision"].endswith("yes")


def test_info_prints_the_nano_numbers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = rows_of(capsys, tmp_path / "config.json", nano_document())
    assert rows["blocks, per token, all layers"].endswith(" 106 B")
    assert rows["total"].endswith(" 13,594,518")
    assert rows["vision"].endswith("no")


def test_the_built_in_model_is_the_default() -> None:
    parser = argparse.ArgumentParser()
    info.add_arguments(parser)
    assert (parser.parse_args([]).path / "config.json").is_file()


def test_a_bad_configuration_is_an_error_of_ours(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="architectures is missing"):
        info.run(argparse.Namespace(path=tmp_path))
