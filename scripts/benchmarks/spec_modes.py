"""The ways to speculate that benchmarks and tests compare, and the prompts they are compared on."""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from nano.prompts import held_out_prompts

from stepahead import Engine, EngineConfig
from stepahead.engine.model.opening import BUILT_IN

DRAFTS = 5  # of the built-in model's block


class Mode(msgspec.Struct, frozen=True):
    """One way to run an engine."""

    name: str
    knobs: dict[str, Any] = {}
    most_drafts: tuple[int | None, ...] = (None,)  # of requests, in turn
    forced: bool = False  # step by step as many drafts as chance says, and some steps that leave none
    seeded: bool = True  # a seed says the same as without drafts; if not, only greedy texts can be compared

    def config(self, sequences: int) -> EngineConfig:
        return EngineConfig(max_sequences=sequences, max_context=512, prefix_cache=False, **self.knobs)

    def prepare(self, engine: Engine) -> None:
        """What knobs do not say; before the first request."""
        if self.forced:
            choice = engine._host.wiring.scheduler.core._speculation
            choice.force(lambda step, most: _chance(step, most + 1), lambda step: _chance(~step, 8) > 0)


def _chance(step: int, count: int) -> int:
    return random.Random(step).randrange(count)


OFF = Mode("off", {"draft_tokens": 0})
ALL = Mode("all", {"verify": "all"})
ADAPTIVE = Mode("adaptive", {"verify": "adaptive"})
MODES = (
    OFF,
    *(Mode(f"fixed {count}", {"verify": count}) for count in range(1, DRAFTS + 1)),
    Mode("all, no overlap", {"verify": "all", "overlap": False}),
    Mode("all, caps 0-5", {"verify": "all"}, most_drafts=(0, 3, None, 1, 5, 2, 4)),
    ADAPTIVE,
    Mode("adaptive, caps 0-5", {"verify": "adaptive"}, most_drafts=(0, 3, None, 1, 5, 2, 4)),
    Mode("forced budgets", {"verify": "adaptive"}, forced=True),
    Mode("rejection", {"verify": "all", "acceptance": "rejection"}, seeded=False),
)


def prompts_by_source(arguments: argparse.Namespace, each: int, length: int) -> dict[str, list[list[int]]]:
    folder: Path = arguments.model or BUILT_IN
    return held_out_prompts(arguments.corpus, folder, each, length)


def mixed(prompts: dict[str, list[list[int]]], count: int) -> list[list[int]]:
    """So many prompts, taking one of each source in turn, from the first again when all have been taken."""
    return list(itertools.islice(itertools.cycle(_in_turn(prompts)), count))


def _in_turn(prompts: dict[str, list[list[int]]]) -> Iterator[list[int]]:
    for group in itertools.zip_longest(*prompts.values()):
        yield from (prompt for prompt in group if prompt is not None)
