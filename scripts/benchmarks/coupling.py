"""What it costs that a seed's text does not depend on drafts: the engine in both modes of acceptance.

Both run as they always do, every step verifying all drafts, on the same prompts with the same seeds. A place
is judged when all drafts before it in its window were accepted; the accepted share of judged places is what a
method can influence, and the tokens per step of a sequence are what comes of it.
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from typing import Any, Literal

from stepahead import Engine, EngineConfig, SamplingParams, Usage

from .report import print_table, write_json

HELP = "acceptance of drafts in both modes, coupled and by rejection, built-in model"

PROMPTS = (
    "Once upon a time", "The little dog said", "Tom and his mom went to", "One day, a girl named Lily",
    "2 + 3 =", "There was a big tree", "Hello! How are you?", "List three colors:",
)  # fmt: skip
REQUESTS: dict[str, dict[str, Any]] = {
    "temperature 0.5": {"temperature": 0.5},
    "temperature 0.7, top_p 0.95": {"temperature": 0.7, "top_p": 0.95},
    "temperature 1.0": {"temperature": 1.0},
    "temperature 1.0, top_p 0.9": {"temperature": 1.0, "top_p": 0.9},
    "temperature 1.3": {"temperature": 1.3},
    "temperature 1.0, penalties": {"frequency_penalty": 0.4, "repetition_penalty": 1.1},
}
Mode = Literal["coupled", "rejection"]
MODES: tuple[Mode, ...] = ("coupled", "rejection")


@dataclass
class Acceptance:
    """Counts over the steps of sequences that verified drafts."""

    accepted: int = 0
    judged: int = 0
    steps: int = 0

    def add(self, usage: Usage) -> None:
        """A step in which k drafts were accepted judged k + 1 places, or all there are."""
        drafts = usage.drafted_tokens // max(usage.decode_steps, 1)
        at_least = [usage.decode_steps, *usage.accepted_by_position]
        self.steps += usage.decode_steps
        self.accepted += sum(usage.accepted_by_position)
        self.judged += sum(at_least[:drafts])

    @property
    def share(self) -> float:
        return self.accepted / self.judged

    @property
    def tokens_per_step(self) -> float:
        return 1 + self.accepted / self.steps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=96, metavar="N", help="tokens per text (96)")
    parser.add_argument("--texts", type=int, default=4, metavar="N", help="texts per prompt (4)")


def run(arguments: argparse.Namespace) -> None:
    found = {mode: asyncio.run(_measure(mode, arguments.tokens, arguments.texts)) for mode in MODES}
    rows, content = [], {}
    for name in REQUESTS:
        own = {mode: found[mode][name] for mode in MODES}
        rows.append(
            [name]
            + [f"{own[mode].share:.3f}" for mode in MODES]
            + [f"{own[mode].tokens_per_step:.2f}" for mode in MODES]
            + [str(own["coupled"].judged)]
        )
        content[name] = {mode: [own[mode].share, own[mode].tokens_per_step] for mode in MODES}
    columns = ["request", *MODES, "tokens/step", "by rejection", "places"]
    print_table("Accepted share of the places judged, and tokens of a step", columns, rows)
    write_json("coupling", content)


async def _measure(mode: Mode, tokens: int, texts: int) -> dict[str, Acceptance]:
    config = EngineConfig(max_sequences=len(PROMPTS) * texts, acceptance=mode, verify="all", max_context=512)
    found: dict[str, Acceptance] = {}
    async with Engine.open(config=config) as engine:
        for name, fields in REQUESTS.items():
            asked = [
                SamplingParams(max_tokens=tokens, seed=seed, ignore_eos=True, **fields)
                for seed in range(len(PROMPTS) * texts)
            ]
            prompts = [prompt for prompt in PROMPTS for _ in range(texts)]
            found[name] = Acceptance()
            done = await asyncio.gather(*(engine.generate(p, a) for p, a in zip(prompts, asked, strict=True)))
            for completion in done:
                found[name].add(completion.usage)
    return found
