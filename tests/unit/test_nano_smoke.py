"""The recipe of the shipped model runs from text to checkpoint on a CPU, with a much smaller model."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from stepahead.engine.model.opening import open_model
from stepahead.engine.model.plain_loop import generate

SCRIPT = Path(__file__).resolve().parents[2] / "scripts/train_nano.py"


@pytest.mark.slow
def test_the_recipe_runs_and_its_result_opens(tmp_path: Path) -> None:
    # A process of its own: the script chooses precision and threads for the whole process.
    command = [sys.executable, str(SCRIPT), "--smoke", "--keep", str(tmp_path), "--threads", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=115)
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"^step .* loss (\S+)", done.stdout, re.M)]
    assert losses[-1] < losses[0] - 1  # it learns
    assert re.search(r"^draft step \d+ ", done.stdout, re.M)
    assert re.search(r"^bits per byte, stories: ", done.stdout, re.M)
    assert re.search(r"^accepted drafts per step .* mixture: ", done.stdout, re.M)
    opened = open_model(tmp_path / "model")
    assert len(list(generate(opened.model, opened.tokenizer.encode("Once"), max_tokens=3))) <= 3
