"""Texts and log-probabilities of every mode beside those without speculation.

Greedy and at temperature 1 with seeds: tokens must be equal, log-probabilities within rounding, since a
step of six rows sums in another order than one of a single row. Where a text differs, the gap between the
two best logits at that place tells a tie from a mistake.
"""

from __future__ import annotations

import argparse
import asyncio
import time

import msgspec

from stepahead import Completion, Engine, SamplingParams

from .report import print_table, write_json
from .spec_modes import MODES, OFF, Mode, mixed, prompts_by_source

SEQUENCES, PROMPT, TOKENS, ALTERNATIVES = 64, 24, 24, 2
TOLERANCE = 1e-3
"""Of a log-probability, float32."""


class Comparison(msgspec.Struct, frozen=True):
    """One mode at one temperature against the same without drafts."""

    mode: str
    temperature: float
    equal: int  # texts
    largest: float  # difference of a log-probability of the tokens up to a difference
    gaps: list[float]  # where texts differ: between the two best log-probabilities there
    verified: int  # drafts
    accepted: int  # of these
    per_step: float  # tokens a sequence and step
    seconds: float


def run(arguments: argparse.Namespace) -> None:
    tokens = arguments.tokens or TOKENS
    prompts = mixed(prompts_by_source(arguments, arguments.prompts, PROMPT), arguments.prompts)
    made = compare_all(prompts, [m for m in MODES if arguments.only in m.name], tokens, (0.0, 1.0))
    rows = [_row(comparison, len(prompts)) for comparison in made]
    notes = [
        f"{len(prompts)} prompts of {PROMPT} tokens, {tokens} tokens each, {SEQUENCES} at a time",
        f"log-probabilities: of each token and {ALTERNATIVES} alternatives, tolerance {TOLERANCE:g}",
    ]
    columns = (
        "mode",
        "T",
        "equal texts",
        "logprobs off by",
        "verified",
        "accepted",
        "tokens/step",
        "seconds",
    )
    print_table("equality: every mode beside none, built-in model", columns, rows, notes)
    print(f"  written to {write_json('spec_equality', {'modes': [msgspec.to_builtins(c) for c in made]})}")
    if any(c.equal < len(prompts) or c.largest > TOLERANCE for c in made):
        raise SystemExit("modes differ")


def compare_all(
    prompts: list[list[int]], modes: list[Mode], tokens: int, temperatures: tuple[float, ...]
) -> list[Comparison]:
    """Every mode at every temperature; `OFF` is what they are compared with."""
    made = []
    expected = {t: asyncio.run(_complete(OFF, prompts, tokens, t)) for t in temperatures}
    for mode in modes:
        for temperature in temperatures if mode.seeded else (0.0,):
            begun = time.perf_counter()
            got = asyncio.run(_complete(mode, prompts, tokens, temperature))
            made.append(_compare(mode, temperature, expected[temperature], got, time.perf_counter() - begun))
    return made


async def _complete(
    mode: Mode, prompts: list[list[int]], tokens: int, temperature: float
) -> list[Completion]:
    caps = [mode.most_drafts[i % len(mode.most_drafts)] for i in range(len(prompts))]
    asked = [
        SamplingParams(
            temperature=temperature, max_tokens=tokens, seed=i, logprobs=ALTERNATIVES, draft_tokens=cap
        )
        for i, cap in enumerate(caps)
    ]
    async with Engine.open(config=mode.config(SEQUENCES)) as engine:
        mode.prepare(engine)
        requests = (engine.generate(p, params) for p, params in zip(prompts, asked, strict=True))
        return list(await asyncio.gather(*requests))


def _compare(
    mode: Mode, temperature: float, expected: list[Completion], got: list[Completion], seconds: float
) -> Comparison:
    largest, gaps = 0.0, []
    for one, other in zip(expected, got, strict=True):
        same = _common(one.token_ids, other.token_ids)
        if one.token_ids != other.token_ids or one.finish_reason != other.finish_reason:
            gaps.append(_gap(one, same))
        largest = max(largest, _difference(one, other, same))
    used = [completion.usage for completion in got]
    output, steps = sum(u.output_tokens for u in used), sum(u.decode_steps for u in used)
    return Comparison(
        mode=mode.name,
        temperature=temperature,
        equal=len(got) - len(gaps),
        largest=largest,
        gaps=gaps,
        verified=sum(u.drafted_tokens for u in used),
        accepted=sum(u.accepted_tokens for u in used),
        per_step=(output - len(got)) / max(steps, 1),
        seconds=seconds,
    )


def _common(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """Tokens before the first difference."""
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def _gap(completion: Completion, place: int) -> float:
    if completion.logprobs is None or place >= len(completion.logprobs):
        return float("inf")  # one text ends where the other goes on
    (_, best), (_, second) = completion.logprobs[place].top
    return best - second


def _difference(one: Completion, other: Completion, tokens: int) -> float:
    """Largest difference of log-probabilities: chosen tokens, and alternatives by rank."""
    if tokens == 0:
        return 0.0
    assert one.logprobs is not None
    assert other.logprobs is not None
    largest = 0.0
    for a, b in zip(one.logprobs[:tokens], other.logprobs[:tokens], strict=True):
        pairs = [(a.logprob, b.logprob), *((x[1], y[1]) for x, y in zip(a.top, b.top, strict=True))]
        largest = max(largest, *(abs(x - y) for x, y in pairs))
    return largest


def _row(comparison: Comparison, prompts: int) -> list[str]:
    ties = f" (gaps {', '.join(f'{g:.1e}' for g in comparison.gaps[:3])})" if comparison.gaps else ""
    return [
        comparison.mode,
        f"{comparison.temperature:g}",
        f"{comparison.equal}/{prompts}{ties}",
        f"{comparison.largest:.1e}",
        f"{comparison.verified:,}",
        f"{comparison.accepted:,}",
        f"{comparison.per_step:.2f}",
        f"{comparison.seconds:.1f}",
    ]
