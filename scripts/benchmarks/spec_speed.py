"""Tokens per second with and without speculation, and the rows that adaptive verification saves.

One user: prompts of every source one after another, the engines taking turns within each prompt. Many users:
as many prompts at once, of all sources, the engines taking turns round by round. Prompts differ from round to
round, texts never do from engine to engine, so that a ratio within a round compares like with like.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec
import uvloop
from nano.sources import SOURCES

from stepahead import Completion, Engine, SamplingParams

from .report import print_table, write_json
from .spec_modes import ADAPTIVE, ALL, OFF, Mode, mixed, prompts_by_source

PROMPT = 24
GOALS = {1: 1.6, 64: 0.97, 256: 0.97}  # adaptive by off
SAVED_GOAL, KEPT_GOAL = 0.30, 0.99


class Case(msgspec.Struct, frozen=True):
    users: int
    tokens: int
    modes: tuple[Mode, ...]

    @property
    def name(self) -> str:
        return "1 user" if self.users == 1 else f"{self.users} users"


# Turns of many users are short, two seconds: a shared machine's pace changes by a third within five.
CASES = (
    Case(1, 40, (OFF, ADAPTIVE, ALL)),
    Case(64, 20, (OFF, ADAPTIVE, ALL)),
    Case(256, 32, (OFF, ADAPTIVE)),
)


class Turn(msgspec.Struct):
    """What one engine did with one set of prompts. Turns of one kind can be added."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of all threads: what a busy machine's neighbours hardly change
    prompts: int = 0
    output: int = 0
    steps: int = 0  # of a sequence: decode steps it took part in
    verified: int = 0  # drafts

    def add(self, other: Turn) -> None:
        self.seconds += other.seconds
        self.cpu_seconds += other.cpu_seconds
        self.prompts += other.prompts
        self.output += other.output
        self.steps += other.steps
        self.verified += other.verified

    @property
    def rate(self) -> float:
        return self.output / self.seconds

    @property
    def accept_length(self) -> float:
        """Tokens that a sequence gets of a step; the first of each comes with its prompt."""
        return (self.output - self.prompts) / self.steps

    @property
    def drafts(self) -> float:
        """Drafts of a sequence that a step verifies."""
        return self.verified / self.steps


Turns = dict[tuple[str, int, str], Turn]
"""By mode, round and source ("" where sources are mixed)."""


def run(arguments: argparse.Namespace) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        measured = [
            (case, runner.run(_measure(case, arguments))) for case in CASES if arguments.only in case.name
        ]
    content = {}
    for case, turns in measured:
        if case.users == 1:
            _print_sources(turns, case)
        content[case.name] = [
            {"mode": mode, "round": number, "source": source, **msgspec.to_builtins(turn)}
            for (mode, number, source), turn in turns.items()
        ]
    rows = [row for case, turns in measured for row in _case_rows(case, turns)]
    notes = [
        *(_mixture_note(turns) for case, turns in measured if case.users == 1),
        f"prompts of {PROMPT} tokens of every source, greedy, no end; one torch thread",
        f"medians over {arguments.rounds} rounds of a round's ratio, by time and CPU time; they take turns",
        "drafts: verified, of a sequence and step; saved, kept: drafts and tokens/step beside all verified",
        f"goals: saved at least {SAVED_GOAL:.0%} with kept at least {KEPT_GOAL:.0%}",
    ]
    columns = ("case", "mode", "tok/s", "by off", "by CPU", "goal", "tokens/step", "drafts", "saved", "kept")
    print_table("spec: speculation beside none, built-in model on a CPU", columns, rows, notes)
    print(f"  written to {write_json('bench_spec', content)}")


async def _measure(case: Case, arguments: argparse.Namespace) -> Turns:
    """Engines stay open through all rounds: what they learn, they learn once, before the first."""
    each = max(arguments.rounds, -(-case.users // 10)) + 1
    prompts = prompts_by_source(arguments, each, PROMPT)
    tokens = arguments.tokens or case.tokens
    engines = {mode.name: await Engine.open(arguments.model, mode.config(case.users)) for mode in case.modes}
    turns: Turns = {}
    try:
        for engine in engines.values():
            await _generate(engine, mixed(prompts, case.users), tokens)
        for number in range(arguments.rounds):
            first = number % len(engines)  # who runs behind whom must not be the same in every round
            in_turn = [*engines.items()][first:] + [*engines.items()][:first]
            for source, chosen in _rounds(case, prompts, number):
                for name, engine in in_turn:
                    turns[name, number, source] = await _generate(engine, chosen, tokens)
    finally:
        for engine in engines.values():
            await engine.close()
    return turns


def _rounds(
    case: Case, prompts: dict[str, list[list[int]]], number: int
) -> Iterable[tuple[str, list[list[int]]]]:
    if case.users > 1:
        return [("", mixed(prompts, (number + 1) * case.users)[-case.users :])]
    return [(source, [own[number % len(own)]]) for source, own in prompts.items()]


async def _generate(engine: Engine, prompts: Sequence[list[int]], tokens: int) -> Turn:
    params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    begun, cpu_begun = time.perf_counter(), time.process_time()
    done = await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
    return _turn(done, time.perf_counter() - begun, time.process_time() - cpu_begun)


def _turn(done: Sequence[Completion], seconds: float, cpu_seconds: float) -> Turn:
    used = [completion.usage for completion in done]
    return Turn(
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        prompts=len(done),
        output=sum(u.output_tokens for u in used),
        steps=sum(u.decode_steps for u in used),
        verified=sum(u.drafted_tokens for u in used),
    )


def _totals(turns: Turns, source: str | None = None) -> dict[str, list[Turn]]:
    """By mode, a turn a round."""
    totals: dict[str, dict[int, Turn]] = defaultdict(lambda: defaultdict(Turn))
    for (mode, number, own), turn in turns.items():
        if source in (None, own):
            totals[mode][number].add(turn)
    return {mode: list(by_round.values()) for mode, by_round in totals.items()}


def _ratio(mine: list[Turn], off: list[Turn]) -> float:
    return statistics.median(a.rate / b.rate for a, b in zip(mine, off, strict=True))


def _cpu_ratio(mine: list[Turn], off: list[Turn]) -> float:
    pairs = zip(mine, off, strict=True)
    return statistics.median(a.output / a.cpu_seconds / (b.output / b.cpu_seconds) for a, b in pairs)


def _sum(turns: list[Turn]) -> Turn:
    total = Turn()
    for turn in turns:
        total.add(turn)
    return total


def _case_rows(case: Case, turns: Turns) -> list[list[str]]:
    totals = _totals(turns)
    full = _sum(totals[ALL.name]) if ALL.name in totals else None
    rows = []
    for mode, by_round in totals.items():
        total = _sum(by_round)
        judged = mode == ADAPTIVE.name
        rows.append(
            [
                case.name,
                mode,
                f"{statistics.median(t.rate for t in by_round):,.0f}",
                f"{_ratio(by_round, totals[OFF.name]):.2f}x",
                f"{_cpu_ratio(by_round, totals[OFF.name]):.2f}x",
                f"{GOALS[case.users]:g}x" if judged else "",
                f"{total.accept_length:.2f}",
                f"{total.drafts:.2f}",
                f"{1 - total.drafts / full.drafts:.0%}" if full and judged else "",
                f"{total.accept_length / full.accept_length:.1%}" if full and judged else "",
            ]
        )
    return rows


def _mixture_note(turns: Turns) -> str:
    """One user whose prompts come from the sources as the training text did, not from all alike."""
    shares = {source.name: source.weight for source in SOURCES}

    def gain(spent: Callable[[Turn], float]) -> float:
        gains = []
        for number in {number for _, number, _ in turns}:
            per_token = dict.fromkeys((OFF.name, ADAPTIVE.name), 0.0)
            for (mode, own, source), turn in turns.items():
                if own == number and mode in per_token:
                    per_token[mode] += shares.get(source, 1.0) * spent(turn) / turn.output
            gains.append(per_token[OFF.name] / per_token[ADAPTIVE.name])
        return statistics.median(gains)

    by_time, by_cpu = gain(lambda turn: turn.seconds), gain(lambda turn: turn.cpu_seconds)
    return f"1 user, sources by their share of the training text: {by_time:.2f}x of off, {by_cpu:.2f}x by CPU"


def _print_sources(turns: Turns, case: Case) -> None:
    rows = []
    for source in dict.fromkeys(source for _, _, source in turns):
        totals = _totals(turns, source)
        off, adaptive, full = (totals[mode.name] for mode in (OFF, ADAPTIVE, ALL))
        rows.append(
            [
                source,
                f"{statistics.median(t.rate for t in off):.0f}",
                f"{statistics.median(t.rate for t in adaptive):.0f}",
                f"{_ratio(adaptive, off):.2f}x",
                f"{_cpu_ratio(adaptive, off):.2f}x",
                f"{_ratio(full, off):.2f}x",
                f"{_sum(full).accept_length:.2f}",
                f"{_sum(adaptive).accept_length:.2f}",
                f"{1 - _sum(adaptive).drafts / _sum(full).drafts:.0%}",
            ]
        )
    columns = (
        "source",
        "off",
        "adaptive",
        "by off",
        "by CPU",
        "all by off",
        "tokens/step",
        "adaptive",
        "drafts saved",
    )
    print_table(f"spec: {case.name}, tokens/s by source of the prompt", columns, rows)
