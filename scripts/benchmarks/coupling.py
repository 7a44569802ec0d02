"""What it costs that a seed's text does not depend on drafts: coupled draws beside rejection sampling.

The engine runs as always; an observer keeps the processed distributions of target and drafts. At every place
that was verified before or at the first rejection, rejection sampling would accept with probability
sum(min(p, q)): its mean stands beside how often the coupled draw was accepted there.
"""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import torch
from torch import Tensor

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.devices.kernels.reference import sampling
from stepahead.engine.backend import Backend, model_opener
from stepahead.engine.model.runner import SamplePlan
from stepahead.engine.model.v41.choosing import Chooser, Drawn, ForwardResult
from stepahead.engine.model.v41.processing import DrawRows, Draws, Processor
from stepahead.engine.model.v41.runner import V41Runner
from stepahead.engine.model.v41.sampling_slots import SamplingSlots

from .report import print_table, write_json

HELP = "acceptance of coupled drafts beside what rejection sampling would accept, built-in model"

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
}


class _Recording(Processor):
    """Keeps the distribution of every draw since `made` was cleared."""

    def __init__(self, tables: SamplingSlots) -> None:
        super().__init__(tables)
        self.made: list[Tensor] = []

    def draw(self, logits: Tensor, rows: DrawRows, alternatives: int = -1) -> Draws:
        tables, slots = self._tables, rows.slots
        scaled = logits.index_select(0, rows.numbers) / tables.temperature[slots].unsqueeze(1)
        kept = sampling.keep_best(scaled, tables.top_k[slots], tables.top_p[slots], tables.min_p[slots])
        self.made.append(kept.softmax(-1))
        return super().draw(logits, rows, alternatives)


class _Observer(Chooser):
    """Judges every verified place both ways."""

    def __init__(self, chooser: Chooser) -> None:
        super().__init__(chooser._model, chooser._shape, chooser._state, chooser._tables)
        self._processor: _Recording = _Recording(chooser._tables)
        self._guesses: dict[int, Tensor] = {}  # slot -> [places, vocab]
        self.places, self.coupled, self.rejection = 0, 0.0, 0.0

    def choose(self, forward: ForwardResult, plan: SamplePlan) -> Drawn:
        self._processor.made.clear()
        drawn = super().choose(forward, plan)
        drafts = self._shape.draft_tokens
        target = self._processor.made[0]
        slots = forward.placed.slots.tolist()
        for row in range(forward.placed.layout.decode_count):
            guess, own = self._guesses.get(slots[row]), target[row * (drafts + 1) :]
            accepted = int(drawn.emitted[row]) - 1
            judged = min(accepted + 1, drafts)
            if guess is not None:
                self.places += judged
                self.coupled += min(accepted, judged)
                self.rejection += float(torch.minimum(guess[:judged], own[:judged]).sum())
        return drawn

    def draft(self, placed: Any, caches: Any) -> None:
        self._processor.made.clear()
        super().draft(placed, caches)
        slots = placed.slots[placed.sampling].tolist()
        self._guesses = {
            slot: torch.stack([p[i] for p in self._processor.made]) for i, slot in enumerate(slots)
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, default=96, metavar="N", help="tokens per prompt (96)")


def run(arguments: argparse.Namespace) -> None:
    asyncio.run(_measure(arguments.tokens))


async def _measure(tokens: int) -> None:
    observers: list[_Observer] = []
    opened = model_opener(None, "cpu")

    async def observed(config: EngineConfig) -> Backend:
        backend = await opened(config)
        if not isinstance(backend.runner, V41Runner):
            raise TypeError("the built-in model has another runner")
        observers.append(_Observer(backend.runner._chooser))
        backend.runner._chooser = observers[0]
        return backend

    rows, content = [], {}
    async with Engine.open(config=EngineConfig(max_sequences=len(PROMPTS)), opener=observed) as engine:
        seen = observers[0]
        for name, fields in REQUESTS.items():
            seen.places, seen.coupled, seen.rejection = 0, 0.0, 0.0
            asked = [
                SamplingParams(max_tokens=tokens, seed=i, ignore_eos=True, **fields)
                for i in range(len(PROMPTS))
            ]
            await asyncio.gather(*(engine.generate(p, a) for p, a in zip(PROMPTS, asked, strict=True)))
            coupled, rejection = seen.coupled / seen.places, seen.rejection / seen.places
            rows.append([name, f"{coupled:.3f}", f"{rejection:.3f}", str(seen.places)])
            content[name] = {"coupled": coupled, "rejection": rejection, "places": seen.places}
    title = "Accepted share of the places verified up to the first rejection"
    print_table(title, ["request", "coupled", "rejection", "places"], rows)
    write_json("coupling", content)
