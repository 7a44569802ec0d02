"""One sampling step of the design size, beside a plain argmax of the same logits: CPU time, in turns."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from stepahead.engine.config import RequestLimits
from stepahead.engine.model.runner import NO_TOKEN, RunnerShape
from stepahead.engine.model.v41.processing import DrawRows, Processor
from stepahead.engine.model.v41.sampling_slots import SamplingSlots
from stepahead.engine.sampling.edits import edit_rows
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.types import Occupant, Request, SamplingParams
from stepahead.engine.validation import validate

from .report import print_table, write_json

HELP = "a sampling step of 129,280 tokens x 64 rows, all options on half of them, beside plain argmax"

GOAL = 3.0
PROMPT = 1000

_EDITS: dict[str, Any] = {
    "presence_penalty": 0.3,
    "frequency_penalty": 0.2,
    "repetition_penalty": 1.1,
    "logit_bias": {token: 0.5 for token in range(100, 400)},
    "banned_token_ids": tuple(range(500, 520)),
    "bad_words": tuple((token, token + 1, token + 2) for token in range(600, 620)),
    "min_tokens": 20,
    "stop_token_ids": (7, 8),
}
_FILTERS: dict[str, Any] = {"temperature": 0.8, "top_k": 50, "top_p": 0.95, "min_p": 0.02}
_LOGPROBS: dict[str, Any] = {"logprobs": 5, "logprobs_of": "processed"}

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "edits": _EDITS | {"temperature": 0.0},
    "filters": _FILTERS,
    "nucleus": {"temperature": 0.8, "top_p": 0.95},
    "unfiltered": {"temperature": 1.0},
    "logprobs": _LOGPROBS | {"temperature": 0.0, "banned_token_ids": (3,)},
    "all": _EDITS | _FILTERS | _LOGPROBS,
}
"""What half of the rows ask for; the other half is greedy."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--vocabulary", type=int, default=129_280)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9, metavar="N", help="turns of each contender (9)")


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    logits = _logits(arguments.rows, arguments.vocabulary)
    calls: dict[str, Callable[[], object]] = {"plain argmax": partial(torch.argmax, logits, -1)}
    for name, fields in CASES.items():
        calls[name] = _case(logits, fields)
    times = {name: median(seconds) for name, seconds in _cpu_times(calls, arguments.rounds).items()}
    plain = times["plain argmax"]
    rows = [[name, f"{1e3 * own:.2f}", f"{own / plain:.2f}"] for name, own in times.items()]
    title = f"Sampling {arguments.rows} x {arguments.vocabulary}: half as named, half greedy, one thread"
    print_table(title, ["case", "CPU ms", "of plain argmax"], rows)
    reached = times["all"] / plain
    print(f"all options: {reached:.2f} x plain argmax, goal <= {GOAL} x")
    write_json("sampler", {"cpu_seconds": times, "goal": GOAL, "reached": reached})


def _logits(rows: int, vocabulary: int) -> torch.Tensor:
    """As sharp as a language model's: a few likely tokens above a wide rest."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocabulary, generator=generator) * 1.5
    likely = torch.randint(vocabulary, (rows, 40), generator=generator)
    return logits.scatter_add_(1, likely, 20 * torch.rand(rows, 40, generator=generator))


def _cpu_times(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of this process, which neighbours on the machine stretch less than the clock's."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):
        for name, call in calls.items():
            begun = time.process_time()
            with torch.inference_mode():
                call()
            if number:
                times[name].append(time.process_time() - begun)
    return times


def _case(logits: torch.Tensor, fields: dict[str, Any]) -> Callable[[], object]:
    """One call of the sampler, every second row with these options, behind prompts of a thousand tokens."""
    rows, vocabulary = logits.shape
    limits = RequestLimits(
        vocab_size=vocabulary, context=8192, block_tokens=128, usable_blocks=9999, lookahead=2,
        eos_token_ids=(1,), max_logprobs=20, max_stop_ids=16,
    )  # fmt: skip
    shape = RunnerShape(
        sequence_slots=rows, snapshot_slots=0, blocks=2, table_columns=1, max_rows=rows, max_positions=8192,
        draft_tokens=0, max_stop_ids=16, max_logprobs=20,
    )  # fmt: skip
    random = np.random.default_rng(0)
    occupants = []
    for row in range(rows):
        params = SamplingParams(**(fields if row % 2 else {"temperature": 0.0}), seed=row)
        prompt = random.integers(vocabulary, size=PROMPT, dtype=np.int32)
        resolved = validate(prompt, params, limits)
        request = Request(
            key=row, group=row, choice=0, leader=row, label=None, prompt=prompt.tobytes(), params=resolved,
            priority=0, arrival=0.0, deadline=None, salt=b"",
        )  # fmt: skip
        occupants.append(Occupant(slot=1 + row, request=request, output=0))
    tables = SamplingSlots(shape, vocabulary, logits.device)
    tables.update(SamplingTable(shape).occupy(occupants), edit_rows(occupants))
    slots = np.arange(1, rows + 1, dtype=np.int32)
    wanted = DrawRows(
        numbers=torch.arange(rows),
        slots=torch.from_numpy(slots.astype(np.int64)),
        output=torch.zeros(rows, dtype=torch.int64),
        ahead=torch.full((rows, 0), NO_TOKEN),
        host_slots=slots,
    )
    alternatives = max((occupant.request.params.logprobs for occupant in occupants), default=-1)
    return partial(Processor(tables).draw, logits, wanted, alternatives)
