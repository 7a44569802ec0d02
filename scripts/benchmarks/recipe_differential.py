"""Generated cases compared with the official codec; the cases and the comparisons are the tests' own."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.protocol import comparing, request_mutations
from tests.protocol.comparing import Comparison
from tests.protocol.conversation_strategies import conversations

Counts = dict[str, int]
_SHOWN = 3  # findings printed of each kind


def compare(total: int) -> dict[str, Counts]:
    """Of each kind of case, how many there were of each verdict."""
    start = random.randrange(2**32)
    print(f"seed {start}")
    shares: dict[str, tuple[float, Callable[[int, int], Counts]]] = {
        "prompts, both versions": (0.1, partial(_conversations, comparing.prompt)),
        "prompt token ids, both versions": (0.02, partial(_conversations, comparing.token_ids)),
        **{
            f"{protocol} requests": (0.14, partial(_seeds, partial(_request, protocol)))
            for protocol in request_mutations.BODIES
        },
        "outputs as text": (0.23, partial(_seeds, comparing.text_output)),
        "outputs as tokens": (0.23, partial(_seeds, comparing.token_output)),
    }
    return {name: run(round(total * share), start) for name, (share, run) in shares.items()}


def _request(protocol: str, rng: random.Random) -> Comparison:
    return comparing.request(rng, protocol)


def _seeds(compare_one: Callable[[random.Random], Comparison], count: int, start: int) -> Counts:
    counts = _no_counts()
    for number in range(count):
        _count(counts, compare_one(random.Random(start + number)))
    return counts


def _conversations(compare_one: Callable[[dict[str, Any]], Comparison], count: int, start: int) -> Counts:
    counts = _no_counts()

    @seed(start)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),
    )
    @given(conversations())
    def run(plain: dict[str, Any]) -> None:
        _count(counts, compare_one(plain))

    run()
    return counts


def _no_counts() -> Counts:
    return {"cases": 0} | {verdict.value: 0 for verdict in comparing.Verdict}


def _count(counts: Counts, comparison: Comparison) -> None:
    verdict, evidence = comparison
    counts["cases"] += 1
    counts[verdict.value] += 1
    if verdict is comparing.Verdict.DIFFERENT and counts["different"] <= _SHOWN:
        print(f"different: {evidence}")
