"""How matrices are kept changes no text; rounding as the published engine does is that model in an engine."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
import torch

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.engine.model.opening import describe, load_model, numerics_for
from stepahead.engine.model.plain_loop import generate

PROMPT = "In a village by the sea there lived an old woman. Every morning she "
TOKENS = 6
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


def said(**changed: Any) -> tuple[int, ...]:
    async def main() -> tuple[int, ...]:
        config = EngineConfig(max_sequences=2, max_step_rows=64, max_context=128, kv_blocks=8, **changed)
        async with Engine.open(config=config) as engine:
            return (await engine.generate(PROMPT, GREEDY)).token_ids

    return asyncio.run(main())


def alone(rounding: Literal["none", "published"], *, stored: bool) -> tuple[int, ...]:
    described = describe(None, numerics_for("cpu", rounding=rounding))
    model = load_model(described, torch.device("cpu"), keep_quantized=stored)
    return tuple(generate(model, described.tokenizer.encode(PROMPT), max_tokens=TOKENS))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounding", "weights", "backing"),
    [("none", "stored", "thread"), ("published", "expanded", "thread"), ("published", "stored", "process")],
)
def test_the_engine_says_what_the_model_says(
    rounding: Literal["none", "published"],
    weights: Literal["expanded", "stored"],
    backing: Literal["thread", "process"],
) -> None:
    """Also when the plain loop's matrices are kept the other way."""
    spoken = said(rounding=rounding, weights=weights, cpu_backing=backing, draft_tokens=0)
    assert spoken == alone(rounding, stored=weights == "expanded")
