"""Rows that adaptive verification leaves out, and the tokens per step that this costs, by what a row costs.

How many drafts are worth their rows depends on the device, so the policy is asked about several: the model
and its acceptance are real, the costs of steps are assumed. A device is a *price*, what one more row for
every sequence takes, as a share of a step without drafts. The policy decides by its own objective, tokens per
second at that price, whatever this machine takes for it. Every text is equal to that with all drafts.
"""

from __future__ import annotations

import argparse
import asyncio

import msgspec

from stepahead import Engine, SamplingParams
from stepahead.engine.scheduling.cost_curve import CostCurve, CostModel, Step

from .report import print_table, write_json
from .spec_modes import ADAPTIVE, ALL, DRAFTS, Mode, mixed, prompts_by_source

SEQUENCES, PROMPT, TOKENS = 64, 24, 48
PRICES = (0.015, 0.02, 0.0225, 0.025, 0.05, 0.1, 0.2, 0.4)
TEMPERATURES = (0.0, 1.0)
SAVED_GOAL, KEPT_GOAL = 0.30, 0.99


class AssumedCosts(CostModel):
    """Steps that cost what a price says, whatever they take."""

    def __init__(self, price: float) -> None:
        rows = (SEQUENCES, SEQUENCES * (1 + DRAFTS))
        super().__init__(CostCurve(rows=rows, seconds=(1.0, 1.0 + DRAFTS * price)), rows[1])

    def observe(self, step: Step) -> None:
        pass


class Count(msgspec.Struct, frozen=True):
    """What one engine verified over the same prompts."""

    price: float | None  # None: all drafts
    temperature: float | None  # None: all
    verified: int  # drafts
    steps: int  # of a sequence
    accept_length: float

    @property
    def drafts(self) -> float:
        return self.verified / self.steps

    def seconds_per_token(self, price: float) -> float:
        return (1.0 + self.drafts * price) / self.accept_length


def run(arguments: argparse.Namespace) -> None:
    prompts = mixed(prompts_by_source(arguments, -(-SEQUENCES // 10) + 1, PROMPT), 2 * SEQUENCES)
    tokens = arguments.tokens or TOKENS
    counts: list[Count] = []
    texts: dict[float, list[tuple[int, ...]]] = {}
    for temperature in TEMPERATURES:
        for price in (None, *PRICES):
            count, made = asyncio.run(_count(arguments, prompts, tokens, temperature, price))
            if made != texts.setdefault(temperature, made):
                raise SystemExit(f"texts differ from those with all drafts: price {price}, T {temperature}")
            counts.append(count)
    counts += _together(counts)
    rows = [_row(count, counts) for count in counts]
    notes = [
        f"{len(prompts)} prompts of all sources, {SEQUENCES} at a time, {tokens} tokens each; equal texts",
        "price: what one more row for every sequence takes, as a share of a step without drafts",
        "saved, kept: drafts and tokens of a step, beside all verified; pace: tokens/s at that price",
        f"goal: at least {SAVED_GOAL:.0%} saved with at least {KEPT_GOAL:.0%} kept, at some price",
    ]
    columns = ("T", "price", "drafts", "tokens/step", "saved", "kept", "pace", "goal")
    print_table("spec: rows saved live by adaptive verification, by price", columns, rows, notes)
    content = {"counts": [msgspec.to_builtins(count) for count in counts]}
    print(f"  written to {write_json('bench_spec_saved', content)}")


async def _count(
    arguments: argparse.Namespace,
    prompts: list[list[int]],
    tokens: int,
    temperature: float,
    price: float | None,
) -> tuple[Count, list[tuple[int, ...]]]:
    mode: Mode = ALL if price is None else ADAPTIVE
    async with Engine.open(arguments.model, mode.config(SEQUENCES)) as engine:
        if price is not None:
            engine._host.wiring.scheduler.core._speculation.assume(AssumedCosts(price))
        done = await asyncio.gather(
            *(engine.generate(p, _params(number, tokens, temperature)) for number, p in enumerate(prompts))
        )
    used = [completion.usage for completion in done]
    steps = sum(u.decode_steps for u in used)
    output = sum(u.output_tokens for u in used) - len(done)  # the first token comes with the prompt
    verified = sum(u.drafted_tokens for u in used)
    return Count(price, temperature, verified, steps, output / steps), [c.token_ids for c in done]


def _params(number: int, tokens: int, temperature: float) -> SamplingParams:
    return SamplingParams(
        temperature=temperature, seed=number, max_tokens=tokens, ignore_eos=True, detokenize=False
    )


def _together(counts: list[Count]) -> list[Count]:
    """Of all temperatures."""
    together = []
    for price in (None, *PRICES):
        own = [count for count in counts if count.price == price]
        verified, steps = sum(c.verified for c in own), sum(c.steps for c in own)
        tokens = sum(c.accept_length * c.steps for c in own)
        together.append(Count(price, None, verified, steps, tokens / steps))
    return together


def _row(count: Count, counts: list[Count]) -> list[str]:
    full = next(c for c in counts if c.price is None and c.temperature == count.temperature)
    temperature = "both" if count.temperature is None else f"{count.temperature:g}"
    drafts, tokens = f"{count.drafts:.2f}", f"{count.accept_length:.3f}"
    if count.price is None:
        return [temperature, "all", drafts, tokens, "", "", "", ""]
    saved, kept = 1 - count.drafts / full.drafts, count.accept_length / full.accept_length
    pace = full.seconds_per_token(count.price) / count.seconds_per_token(count.price)
    met = "met" if saved >= SAVED_GOAL and kept >= KEPT_GOAL else ""
    return [
        temperature, f"{count.price:.2%}", drafts, tokens, f"{saved:.1%}", f"{kept:.1%}", f"{pace:.3f}x", met
    ]  # fmt: skip
