"""Step costs: measured in bounded time, kept in a file that may be missing, old, torn or foreign."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from stepahead import EngineConfig
from stepahead.engine import step_costs
from stepahead.engine.model.runner import RunnerShape, StepTime
from stepahead.engine.scheduling.cost_curve import CostCurve
from stepahead.engine.sizing import runner_shape
from stepahead.engine.step_costs import CostsWanted, costs_wanted, measure

from .test_sizing import FACTS, PLENTY


class TimedRunner:
    """Steps of known cost, and a clock that they turn."""

    row_share = 0.0

    def __init__(self, *, padded: list[int] | None = None, slots: int = 64, known: bool = True) -> None:
        self.shape: RunnerShape = runner_shape(EngineConfig(max_sequences=slots), FACTS, PLENTY)
        self.now, self.asked = 0.0, list[tuple[int, int]]()
        self._padded, self._known = padded or [], known

    def padded_rows(self) -> list[int]:
        return self._padded

    def time_step(self, sequences: int, rows: int) -> StepTime | None:
        assert 1 <= sequences <= self.shape.sequence_slots
        assert sequences <= rows <= sequences * (self.shape.draft_tokens + 1)
        self.asked.append((sequences, rows))
        took = StepTime(0.005 + 0.001 * rows, 0.002 + 0.001 * sequences)
        self.now += 4 * took.seconds + 2 * took.draft_seconds
        return took if self._known else None

    def measure(self, seconds: float) -> CostCurve | None:
        asked = CostsWanted(seconds=seconds, folder=None, key="", row_share=self.row_share)
        return measure(self, asked, lambda: self.now)  # type: ignore[arg-type]


def wanted(folder: Path | None, key: str = "k") -> CostsWanted:
    return CostsWanted(seconds=9.0, folder=None if folder is None else str(folder), key=key)


def test_sizes_are_few_and_growing() -> None:
    runner = TimedRunner()
    curve = runner.measure(9.0)
    assert curve is not None
    assert curve.rows == (1, 16, 64, 256, 384)
    assert curve.seconds == pytest.approx([0.005 + 0.001 * rows for rows in curve.rows])
    assert curve.sequences == (1, 16, 64)
    assert curve.draft_seconds == pytest.approx([0.003, 0.018, 0.066])
    assert not curve.padded


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.4, 1.0])
def test_measuring_ends_about_in_time(seconds: float) -> None:
    runner = TimedRunner()
    curve = runner.measure(seconds)
    assert curve is not None
    assert len(curve.rows) >= 2, "there is always a slope"
    assert runner.now <= max(1.5 * seconds, 0.16)


def test_rows_on_a_cpu_never_look_free() -> None:
    runner = TimedRunner(slots=8)
    runner.row_share = 1 / 4
    runner.time_step = lambda sequences, rows: StepTime(0.008, 0.001)  # type: ignore[method-assign]
    curve = runner.measure(9.0)
    assert curve is not None
    assert curve.rows == (1, 16, 48)
    assert curve.seconds == pytest.approx((0.008, 0.008 + 15 * 0.002, 0.008 + 47 * 0.002))


def test_padded_sizes_are_measured_as_they_are() -> None:
    curve = TimedRunner(padded=[1, 2, 3, 6, 12], slots=2).measure(9.0)
    assert curve is not None
    assert (curve.rows, curve.sequences, curve.padded) == ((1, 2, 3, 6, 12), (1, 2), True)


def test_a_runner_that_cannot_tell_has_no_curve() -> None:
    assert TimedRunner(known=False).measure(9.0) is None


def kept(folder: Path | None, runner: Any, now: float = 1000.0, key: str = "k") -> CostCurve | None:
    return step_costs.step_costs(runner, wanted(folder, key), now=lambda: now)


def test_a_file_saves_the_next_measurement(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    first, second = TimedRunner(), TimedRunner()
    curve = kept(folder, first)
    assert curve is not None
    assert kept(folder, second) == curve
    assert not second.asked
    assert [file.name for file in folder.iterdir()] == ["step-costs-k.json"], "no temporary file is left"
    other = TimedRunner()
    assert kept(folder, other, key="another") is not None
    assert other.asked, "another device, model or version"


def test_an_old_file_is_measured_anew(tmp_path: Path) -> None:
    kept(tmp_path, TimedRunner())
    for now in (1000.0 + step_costs.LIFETIME_SECONDS + 1, 0.0):
        late = TimedRunner()
        kept(tmp_path, late, now=now)
        assert late.asked


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 9, "key": "k", "measured_at": 1000.0, "curve": {"rows": [1], "seconds": [1.0]}}',
        b'{"format": 2, "key": "x", "measured_at": 1000.0, "curve": {"rows": [1], "seconds": [1.0]}}',
        b'{"format": 2, "key": "k", "measured_at": 1000.0, "curve": {"rows": [2, 1], "seconds": [1.0, 2.0]}}',
        b'{"format": 2, "key": "k", "measured_at": 1000.0, "curve": {"rows": [1], "seconds": [-1.0]}}',
        b"\xff\xfe",
    ],
)
def test_a_corrupt_file_is_said_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "step-costs-k.json"
    file.write_bytes(content)
    runner = TimedRunner()
    with caplog.at_level(logging.INFO, logger="stepahead"):
        curve = kept(tmp_path, runner)
    assert curve is not None
    assert runner.asked
    assert "measured anew" in caplog.text
    again = TimedRunner()
    assert kept(tmp_path, again) == curve
    assert not again.asked


def test_a_folder_that_cannot_be_written_costs_only_the_next_measurement(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert kept(blocked, TimedRunner()) is not None


def test_without_a_folder_nothing_is_kept() -> None:
    runner = TimedRunner()
    assert kept(None, runner) is not None
    assert runner.asked


def test_files_are_bounded(tmp_path: Path) -> None:
    for number in range(step_costs.MOST_FILES + 5):
        kept(tmp_path, TimedRunner(slots=1), key=f"k{number}")
    assert len(list(tmp_path.iterdir())) == step_costs.MOST_FILES


def model_folder(path: Path, config: str = "{}", weights: int = 10) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(config)
    (path / "model.safetensors").write_bytes(b"x" * weights)
    return path


def asked(folder: Path, kind: str = "cpu", name: str = "a", **knobs: Any) -> CostsWanted | None:
    config = EngineConfig(**{"max_sequences": 8, **knobs})
    return costs_wanted(config, runner_shape(config, FACTS, PLENTY), folder, kind, name)


def test_a_key_tells_apart_whatever_changes_a_step(tmp_path: Path) -> None:
    plain = model_folder(tmp_path / "model")
    answers = [
        asked(plain),
        asked(plain, name="b"),
        asked(plain, kind="nvidia"),
        asked(plain, dtype="bfloat16"),
        asked(plain, max_sequences=9),
        asked(plain, draft_tokens=2),
        asked(plain, cpu_backing="process"),
        asked(model_folder(tmp_path / "other", config="[]")),
        asked(model_folder(tmp_path / "third", weights=11)),
    ]
    keys = [answer.key for answer in answers if answer is not None]
    assert len(set(keys)) == len(answers)
    again = asked(plain)
    assert again is not None
    assert again.key == keys[0]


def test_nothing_is_wanted_where_nothing_is_chosen(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    assert asked(folder, verify="all") is None
    assert asked(folder, verify=2) is None
    assert asked(folder, draft_tokens=0) is None
    nowhere = asked(folder, cost_folder=None)
    assert nowhere is not None
    assert nowhere.folder is None
    somewhere = asked(folder, cost_folder=str(tmp_path))
    assert somewhere is not None
    assert somewhere.folder == str(tmp_path)
