"""What became of every draft, watched at the seam between the engine and its runner.

A step's result says how confident the model is in the drafts it just made; the next step of the sequence says
how many of them were accepted. Both cross `Runner.collect`, so nothing inside the model is touched and any
device can be watched. What crosses is a chance. Its log-odds are exact enough up to 16, beyond which float32
no longer tells it from certainty, and `uncalibrated` opens a model whose calibration changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from stepahead.devices.device import Ticket, WorkObserver
from stepahead.engine.backend import Backend, Opener
from stepahead.engine.config import EngineConfig
from stepahead.engine.model.runner import BatchLayout, Float32s, Runner, SamplePlan, StepPlan, StepResult

from .calibration import Floats, Ints, Judgements


class WatchedRunner(Runner):
    """Passes everything on and remembers which drafts were judged, and how."""

    def __init__(self, runner: Runner) -> None:
        self.facts, self.shape = runner.facts, runner.shape
        self._runner = runner
        self._layouts: dict[int, BatchLayout] = {}
        self._said: dict[int, tuple[int, Float32s]] = {}  # slot -> its occupant, confidences of its drafts
        self._judged: list[tuple[int, float, bool]] = []
        self._rounds: list[tuple[Float32s, int]] = []

    def taken(self) -> list[tuple[int, float, bool]]:
        """(place, confidence, accepted) of what was judged since the last call."""
        judged, self._judged = self._judged, []
        return judged

    def taken_rounds(self) -> tuple[Floats, Ints]:
        """Rounds whose drafts were all verified: log-odds `[rounds, drafts]`, and how many were accepted."""
        rounds, self._rounds = self._rounds, []
        said = np.array([chances for chances, _ in rounds], dtype=np.float64)
        return _log_odds(said), np.array([accepted for _, accepted in rounds], dtype=np.int64)

    def launch_forward(self, plan: StepPlan) -> None:
        self._layouts[plan.step] = plan.layout
        self._runner.launch_forward(plan)

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        return self._runner.launch_sample(plan)

    def collect(self, ticket: Ticket) -> StepResult:
        result = self._runner.collect(ticket)
        layout = self._layouts.pop(result.step)
        slots, occupants = layout.slots.tolist(), layout.admissions.tolist()
        for row in range(layout.decode_count):
            occupant, said = self._said.get(slots[row], (-1, None))
            if occupant == occupants[row] and said is not None:
                self._judge(said, int(result.emitted[row]) - 1, int(result.drafted[row]))
        if result.confidences is not None:
            for row in np.flatnonzero(layout.samples).tolist():
                self._said[slots[row]] = (occupants[row], result.confidences[row])
        return result

    def _judge(self, said: Float32s, accepted: int, verified: int) -> None:
        if verified == len(said):
            self._rounds.append((said, accepted))
        for place in range(min(accepted + 1, verified)):
            self._judged.append((place, float(said[place]), place < accepted))

    def time_work(self, observer: WorkObserver) -> None:
        self._runner.time_work(observer)

    def close(self) -> None:
        self._runner.close()


def watched(opener: Opener, into: list[WatchedRunner]) -> Opener:
    """The same backend, watched."""

    async def open_backend(config: EngineConfig) -> Backend:
        backend = await opener(config)
        into.append(WatchedRunner(backend.runner))
        return Backend(into[-1], backend.device, backend.tokenizer)

    return open_backend


def judgements(taken: Sequence[tuple[int, float, bool]]) -> Judgements:
    place = np.array([t[0] for t in taken], dtype=np.int64)
    said = np.array([t[1] for t in taken], dtype=np.float64)
    return Judgements(place, _log_odds(said), np.array([t[2] for t in taken], dtype=np.bool_))


def _log_odds(said: Floats) -> Floats:
    bounded = said.clip(2.0**-25, 1 - 2.0**-25)
    odds: Floats = np.log(bounded) - np.log1p(-bounded)
    return odds


def uncalibrated(model: Path, sign: str, folder: Path) -> Path:
    """A folder with the same model, whose confidences are the log-odds of one sign: "head" or "peak"."""
    for file in model.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    document = json.loads((model / "config.json").read_text())
    text = document["text_config"]
    text.pop("dspark_confidence_temperatures", None)
    text["dspark_peak_calibration"] = [[1.0, 0.0]] * text["dspark_block_size"] if sign == "peak" else []
    (folder / "config.json").write_text(json.dumps(document))
    return folder
