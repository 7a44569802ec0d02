"""Prefill and decode of the built-in model on a CPU, beside transformers' DeepSeek V4 of its dimensions."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import torch

from .measure import alternate, medians, peak_resident_bytes, resident_bytes
from .model_contenders import Contender, Ours, Peer
from .report import print_table, write_json

HELP = "tokens/s and peak memory of prefill and decode, beside transformers' deepseek_v4"

PREFILL_TOKENS = 2048
CONTEXT = 512
LONG_CONTEXT = 8192
BATCHES = (1, 16, 64)
STEPS_PER_ROUND = 4
GOALS = {"prefill 2048": 1.5, "decode batch 16": 4.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="turns of each contender (7)")
    parser.add_argument("--threads", type=int, metavar="N", help="torch threads (all cores)")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name contains this")
    parser.add_argument("--skip-long", action="store_true", help="leave out the 8k context")
    parser.add_argument("--skip-memory", action="store_true", help="leave out peak memory")
    parser.add_argument("--memory-of", metavar="CONTENDER:CASE", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> None:
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.memory_of:
        print(json.dumps(_memory_here(*arguments.memory_of.split(":"))))
        return
    ours = Ours()
    contenders: dict[str, Contender] = {"ours": ours, "peer": Peer(ours.config)}
    cases = _measure_cases(contenders, arguments.rounds, arguments.only)
    long = {} if arguments.skip_long else _measure_contexts(contenders, arguments.rounds)
    memory = {} if arguments.skip_memory else {case: _memory(case, arguments) for case in cases}
    _report(contenders, cases, long, memory, arguments.rounds)


def _prompt(sequences: int, tokens: int) -> torch.Tensor:
    return torch.randint(64, 4096, (sequences, tokens), generator=torch.Generator().manual_seed(0))


def _steps(contender: Contender, batch: int, context: int) -> Callable[[], None]:
    """A few decode steps, after feeding the context."""
    decoding = contender.prefill(_prompt(batch, context))

    def steps() -> None:
        for _ in range(STEPS_PER_ROUND):
            decoding.step()

    return steps


def _measure_cases(contenders: dict[str, Contender], rounds: int, only: str) -> dict[str, dict[str, float]]:
    """Tokens per second of every case and contender."""
    names = [f"prefill {PREFILL_TOKENS}", *(f"decode batch {batch}" for batch in BATCHES)]
    return {name: _measure_case(contenders, name, rounds) for name in names if only in name}


def _measure_case(contenders: dict[str, Contender], case: str, rounds: int) -> dict[str, float]:
    kind, *_, number = case.split()
    if kind == "prefill":
        prompt, tokens, rounds = _prompt(1, int(number)), int(number), max(rounds // 2, 1)
        calls: dict[str, Callable[[], object]] = {
            name: partial(contender.prefill, prompt) for name, contender in contenders.items()
        }
    else:
        tokens = int(number) * STEPS_PER_ROUND
        calls = {name: _steps(contender, int(number), CONTEXT) for name, contender in contenders.items()}
    return {name: tokens / seconds for name, seconds in medians(alternate(calls, rounds=rounds)).items()}


def _measure_contexts(contenders: dict[str, Contender], rounds: int) -> dict[str, dict[int, float]]:
    """Milliseconds per decode step of one sequence, by contender and context length.

    Both contexts of a contender take turns with each other, since their ratio is the question.
    """
    result = {}
    for name, contender in contenders.items():
        calls = {str(n): _steps(contender, 1, n) for n in (CONTEXT, LONG_CONTEXT)}
        seconds = medians(alternate(calls, rounds=rounds))
        result[name] = {int(n): s * 1000 / STEPS_PER_ROUND for n, s in seconds.items()}
    return result


def _memory(case: str, arguments: argparse.Namespace) -> dict[str, dict[str, int]]:
    """Each contender in a process of its own: a peak cannot be reset."""
    result = {}
    for name in ("ours", "peer"):
        command = [sys.executable, "-m", "benchmarks", "model", "--memory-of", f"{name}:{case}"]
        command += ["--threads", str(torch.get_num_threads())]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        result[name] = json.loads(done.stdout.splitlines()[-1])
    return result


def _memory_here(name: str, case: str) -> dict[str, int]:
    """Bytes before and at the peak of one case, weights loaded."""
    ours = Ours()
    contender: Contender = ours if name == "ours" else Peer(ours.config)
    if name == "peer":
        del ours
    before = resident_bytes()
    kind, *_, number = case.split()
    if kind == "prefill":
        contender.prefill(_prompt(1, int(number)))
    else:
        _steps(contender, int(number), CONTEXT)()
    return {"before": before, "peak": peak_resident_bytes()}


def _report(
    contenders: dict[str, Contender],
    cases: dict[str, dict[str, float]],
    contexts: dict[str, dict[int, float]],
    memory: dict[str, dict[str, dict[str, int]]],
    rounds: int,
) -> None:
    rows = [_row(case, rates, memory.get(case)) for case, rates in cases.items()]
    notes = [
        f"float32, {torch.get_num_threads()} threads, medians of {rounds} alternating rounds",
        f"decode at context {CONTEXT}, which is filled by forwards of 2048 rows",
        "memory is the peak above the loaded model",
        *(f"{name}: {c.parameters / 1e6:.1f} M parameters" for name, c in contenders.items()),
        *(_context_note(name, by_context) for name, by_context in contexts.items()),
    ]
    columns = ("case", "ours tok/s", "peer tok/s", "ratio", "goal", "ours MiB", "peer MiB")
    print_table("model: ours beside transformers deepseek_v4", columns, rows, notes)
    parameters = {name: c.parameters for name, c in contenders.items()}
    path = write_json(
        "bench_model",
        {
            "rounds": rounds,
            "tokens_per_second": cases,
            "milliseconds_by_context": contexts,
            "memory": memory,
            "parameters": parameters,
        },
    )
    print(f"  written to {path}")


def _row(case: str, rates: dict[str, float], memory: dict[str, dict[str, int]] | None) -> list[str]:
    def mebibytes(name: str) -> str:
        return "" if memory is None else f"{(memory[name]['peak'] - memory[name]['before']) / 2**20:,.0f}"

    goal = GOALS.get(case)
    return [
        case,
        f"{rates['ours']:,.0f}",
        f"{rates['peer']:,.0f}",
        f"{rates['ours'] / rates['peer']:.2f}x",
        "" if goal is None else f"{goal:g}x",
        mebibytes("ours"),
        mebibytes("peer"),
    ]


def _context_note(name: str, by_context: dict[int, float]) -> str:
    short, long = by_context[CONTEXT], by_context[LONG_CONTEXT]
    goal = " (goal: at most 1.5x)" if name == "ours" else ""
    times = f"{short:.1f} ms at context {CONTEXT}, {long:.1f} ms at {LONG_CONTEXT}"
    return f"{name}: a decode step takes {times}: {long / short:.2f}x{goal}"
