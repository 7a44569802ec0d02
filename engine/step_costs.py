"""The cost curve of a runner's decode steps: measured once while an engine opens, or read from a file.

Measuring means running steps on scratch places, so it happens before anything else uses the device, and it
must stay short: a few sizes, each some times as large as the one before, until a time limit; what lies beyond
is extrapolated. An engine that is opened again, as in tests, scripts and restarts, finds the curve in a file.
A file is a hint and nothing more: one that is missing, old, torn or written by a future version is measured
anew, and a folder that cannot be written costs nothing but the next measurement.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import msgspec

from . import events
from .config import EngineConfig
from .errors import EngineError
from .model.runner import Runner, RunnerShape, StepTime
from .scheduling.cost_curve import CostCurve

LIFETIME_SECONDS = 24 * 3600.0
"""After so long a file is measured anew: drivers, clocks and neighbours change."""
MOST_FILES = 64
"""Files of one folder; the oldest go first."""
FORMAT = 2
LEAST = 1e-9
"""Seconds: a difference of two noisy times may come out as nothing."""


SECONDS_ON_CPU, SECONDS_ELSEWHERE = 0.5, 3.0
"""What measuring may take: a CPU's user opens engines in scripts, a GPU's captures graphs for longer."""


ROW_SHARE_ON_CPU = 1 / 64
"""A CPU pays for every row. Where a busy machine makes that invisible, rows would look free for good."""


class CostsWanted(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure for how long, and where the answer may lie. Crosses to a device process."""

    seconds: float
    folder: str | None
    key: str
    row_share: float = 0.0  # of a one-row step, the least that each further row is taken to cost


class CorruptCostFileError(EngineError):
    """A file of step costs that cannot be used; it will be replaced."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"the step costs in {path} cannot be used: {problem}")
        self.path = path


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    key: str
    measured_at: float  # seconds since 1970
    curve: CostCurve


def user_cache_folder() -> Path:
    """Where caches of programs lie in a home folder. Asked when an engine opens, never on import."""
    return Path("~/.cache/stepahead").expanduser()


def file_key(*facts: object) -> str:
    """One name for everything a step's time depends on: device, types, model, sizes, versions."""
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def model_fingerprint(folder: Path) -> str:
    """Which model lies in a folder: its configuration, and names and sizes of its weights."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for file in sorted(folder.glob("*.safetensors")):
        digest.update(f"{file.name}:{file.stat().st_size}\n".encode())
    return digest.hexdigest()


def costs_wanted(
    config: EngineConfig, shape: RunnerShape, model: Path, device_kind: str, device_name: str
) -> CostsWanted | None:
    """What an engine needs to know of its steps; None: it verifies alike whatever they cost. Reads files."""
    if config.verify != "adaptive" or shape.draft_tokens == 0:
        return None
    folder = user_cache_folder() if config.cost_folder == "user" else config.cost_folder
    return CostsWanted(
        seconds=SECONDS_ON_CPU if device_kind == "cpu" else SECONDS_ELSEWHERE,
        row_share=ROW_SHARE_ON_CPU if device_kind == "cpu" else 0.0,
        folder=None if folder is None else str(folder),
        key=file_key(
            device_kind,
            device_name,
            os.cpu_count() if device_kind == "cpu" else None,
            config.cpu_backing if device_kind == "cpu" else None,
            (config.dtype, config.rounding, config.weights),
            model_fingerprint(model),
            (shape.draft_tokens, shape.sequence_slots, shape.graph_sequences),
            version("stepahead"),
            version("torch"),
        ),
    )


def step_costs(
    runner: Runner, wanted: CostsWanted, *, now: Callable[[], float] = time.time
) -> CostCurve | None:
    """The curve, from the file of that key or measured. Blocking.

    None where the runner cannot time a step. Without a folder nothing is read or written.
    """
    if wanted.folder is None:
        return measure(runner, wanted)
    folder, key = Path(wanted.folder), wanted.key
    path = folder / f"step-costs-{key}.json"
    try:
        known = _read(path, key, now())
    except CorruptCostFileError as error:
        events.info("step costs are measured anew", reason=str(error))
        known = None
    if known is not None:
        return known
    curve = measure(runner, wanted)
    if curve is not None:
        try:
            _write(path, _File(format=FORMAT, key=key, measured_at=now(), curve=curve))
            _tidy(folder)
        except OSError as error:
            events.info("step costs are not kept", reason=str(error))
    return curve


def measure(
    runner: Runner, wanted: CostsWanted, clock: Callable[[], float] = time.perf_counter
) -> CostCurve | None:
    """Times decode steps of growing size, without and with drafts, for about `wanted.seconds`. Blocking.

    Two sizes are always measured, so that there is a slope; others if they will probably end in time.
    """
    shape, began = runner.shape, clock()
    reach, padded = shape.draft_tokens + 1, runner.padded_rows()
    last = 0.0
    rows: list[int] = []
    times: list[StepTime] = []
    for size in padded or _spread(shape.sequence_slots * reach):
        started = clock()
        if len(rows) >= 2 and started - began + last * size / rows[-1] > wanted.seconds:
            break
        took = runner.time_step(min(size, shape.sequence_slots), size)
        if took is None:
            return None
        last = clock() - started  # a larger size takes longer at most in proportion
        rows.append(size)
        times.append(took)
    drafted = [place for place, size in enumerate(rows) if size <= shape.sequence_slots]
    seconds = [max(times[0].seconds, LEAST)]
    for place in range(1, len(rows)):
        least = seconds[-1] + wanted.row_share * seconds[0] * (rows[place] - rows[place - 1])
        seconds.append(max(times[place].seconds, least))
    return CostCurve(
        rows=tuple(rows),
        seconds=tuple(seconds),
        sequences=tuple(rows[place] for place in drafted),
        draft_seconds=tuple(max(times[place].draft_seconds, LEAST) for place in drafted),
        padded=bool(padded),
    )


def _spread(most: int) -> list[int]:
    """1, 16, 64, ... and `most`. The first two may be all there is time for: they must be far enough apart
    that what disturbs a busy machine is small beside what the rows between them cost."""
    sizes = [1, 16] if most > 16 else [1]
    while len(sizes) > 1 and sizes[-1] * 4 < most:
        sizes.append(sizes[-1] * 4)
    return [*sizes, most] if most > 1 else sizes


def _read(path: Path, key: str, now: float) -> CostCurve | None:
    """None where there is no file, or one past its time. Raises `CorruptCostFileError`."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # msgspec's errors, and those of CostCurve, are ValueErrors
        raise CorruptCostFileError(path, str(error)) from error
    if file.format != FORMAT or file.key != key:
        raise CorruptCostFileError(path, f"format {file.format} of key {file.key}")
    return file.curve if 0 <= now - file.measured_at <= LIFETIME_SECONDS else None


def _write(path: Path, file: _File) -> None:
    """Whole or not at all: engines that open together must not read half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".step-costs-")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(msgspec.json.encode(file))
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _tidy(folder: Path) -> None:
    """Keeps the newest files."""
    files = sorted(folder.glob("step-costs-*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[MOST_FILES:]:
        file.unlink(missing_ok=True)
