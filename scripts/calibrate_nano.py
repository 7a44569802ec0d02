"""Calibrate the drafts of the model in `engine/nano`, and show how far their confidence can be trusted.

    python scripts/calibrate_nano.py            record, fit, print; draws docs/images/draft_reliability.png
    python scripts/calibrate_nano.py --write    and store what was fitted in the model's config.json

Two signs of certainty are fitted, the confidence head and the peak of the drafts' distribution (see
`nano/calibration.py`); an engine goes by the peak where a checkpoint has it calibrated.

The engine continues the first tokens of held-out documents, greedily and at temperature 1, and verifies every
draft. Half of the documents of each source fit, the other half are what is reported. Documents come from the
token arrays of `train_nano.py --prepare`; without these, from this repository's own documents.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

from nano.acceptance import WatchedRunner, judgements, uncalibrated, watched  # noqa: E402
from nano.calibration import (  # noqa: E402
    Floats,
    Ints,
    Judgements,
    Line,
    calibrated,
    calibration_error,
    chances,
    fit_head,
    fit_peak,
    spared,
    table,
)
from nano.prompts import held_out_prompts  # noqa: E402
from nano.reliability_picture import draw  # noqa: E402

from stepahead import Engine, EngineConfig, SamplingParams  # noqa: E402
from stepahead.engine.backend import model_opener  # noqa: E402
from stepahead.engine.model.v41.config import load_config  # noqa: E402

SIGNS = {"head": fit_head, "peak": fit_peak}
TEMPERATURES = (0.0, 1.0)
PARTS = ("fit", "check")

Recorded = dict[tuple[str, float, str], Judgements]
"""By source, sampling temperature and part."""

Rounds = dict[tuple[float, str], tuple[Floats, Ints]]
"""By sampling temperature and part: log-odds of whole rounds and how many drafts of each were accepted."""


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "engine/nano", help="folder of the model")
    parser.add_argument("--tokens", type=Path, default=ROOT / ".train/corpus.npz.xz", help="token arrays")
    parser.add_argument("--documents", type=int, default=16, help="documents per source (16)")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a document that are given (32)")
    parser.add_argument("--length", type=int, default=64, help="tokens to continue with (64)")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs/images/draft_reliability.png")
    parser.add_argument("--write", action="store_true", help="store what was fitted in config.json")
    return parser.parse_args(arguments)


async def record(options: argparse.Namespace, sign: str, folder: Path) -> tuple[Recorded, Rounds]:
    """Continue every document at every temperature; judge all drafts of all of them by one sign."""
    prompts = held_out_prompts(options.tokens, options.model, options.documents, options.prompt)
    runners: list[WatchedRunner] = []
    config = EngineConfig(max_sequences=32, max_context=1024, prefix_cache=False, verify="all")
    recorded: Recorded = {}
    rounds: dict[tuple[float, str], list[tuple[Floats, Ints]]] = defaultdict(list)
    opener = watched(model_opener(uncalibrated(options.model, sign, folder), "cpu"), runners)
    async with Engine.open(config=config, opener=opener) as engine:
        for source, documents in prompts.items():
            for temperature in TEMPERATURES:
                params = SamplingParams(temperature=temperature, max_tokens=options.length, seed=1)
                for number, part in enumerate(PARTS):
                    mine = documents[number :: len(PARTS)]
                    await asyncio.gather(*(engine.generate(ids, params) for ids in mine))
                    recorded[source, temperature, part] = judgements(runners[0].taken())
                    rounds[temperature, part].append(runners[0].taken_rounds())
    return recorded, {key: _stacked(parts) for key, parts in rounds.items()}


def _stacked(parts: list[tuple[Floats, Ints]]) -> tuple[Floats, Ints]:
    filled = [(raw, accepted) for raw, accepted in parts if accepted.size]
    return np.concatenate([raw for raw, _ in filled]), np.concatenate([accepted for _, accepted in filled])


def joined(recorded: Recorded, part: str, temperature: float | None = None) -> Judgements:
    parts = [j for (_, t, p), j in recorded.items() if p == part and temperature in (None, t)]
    return Judgements(
        np.concatenate([j.place for j in parts]),
        np.concatenate([j.raw for j in parts]),
        np.concatenate([j.accepted for j in parts]),
    )


def report(sign: str, recorded: Recorded, lines: list[Line]) -> None:
    """Of the documents that did not fit."""
    print(f"\n{sign}: " + "\n".join(table(joined(recorded, "check"), lines)))
    print("expected calibration error by source at temperature 0 and 1: before, after")
    by_source: dict[str, list[str]] = defaultdict(list)
    for (source, _, part), judged in recorded.items():
        if part == "check":
            by_source[source].append(_errors(judged, lines))
    for source, errors in by_source.items():
        print(f"{source:>20}  " + "   ".join(errors))
    overall = [_errors(joined(recorded, "check", t), lines) for t in TEMPERATURES]
    print(f"{'all':>20}  " + "   ".join(overall))


def _errors(judged: Judgements, lines: list[Line]) -> str:
    before, after = chances(judged.raw), calibrated(judged, lines)
    return f"{calibration_error(before, judged.accepted):.3f} {calibration_error(after, judged.accepted):.3f}"


def store(folder: Path, fitted: dict[str, list[Line]]) -> None:
    """Into `config.json`, whose other lines stay as they are, and read it back."""
    path = folder / "config.json"
    document = json.loads(path.read_text())
    temperatures = [round(1 / scale, 3) for scale, _ in fitted["head"]]
    document["text_config"]["dspark_confidence_temperatures"] = temperatures
    document["text_config"]["dspark_peak_calibration"] = [list(line) for line in fitted["peak"]]
    path.write_text(json.dumps(document, indent=1) + "\n")
    assert load_config(folder).dspark_peak_calibration == tuple(fitted["peak"])


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    torch.set_num_threads(1)
    places = load_config(options.model).dspark_block_size
    fitted, checked = {}, {}
    for sign, fit in SIGNS.items():
        with tempfile.TemporaryDirectory() as folder:
            recorded, rounds = asyncio.run(record(options, sign, Path(folder)))
        fitted[sign] = fit(joined(recorded, "fit"), places)
        checked[sign] = joined(recorded, "check")
        report(sign, recorded, fitted[sign])
        for temperature in TEMPERATURES:
            share = spared(*rounds[temperature, "check"], fitted[sign])
            print(f"at temperature {temperature:g}, 99 % of the tokens per step spare {share:.1%} of drafts")
    draw(checked, fitted, options.picture)
    if options.write:
        store(options.model, fitted)


if __name__ == "__main__":
    main()
