"""What a decode step costs by its rows on a card, and what speculation makes of it: none, all, adaptive.

    python scripts/gpu/check_speculation.py [--sequences 1,64] [--tokens N] [--rounds N] [--device cuda]

One engine of the built-in model; modes take turns between runs, so that graphs are captured once and whatever
changes meets all of them. Greedy texts of all modes must be equal up to rounding: the share of equal texts is
printed, not judged.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any

from stepahead import Engine, EngineConfig, SamplingParams

OPENINGS = ("Once upon a time", "Tom was a cat who", "In a village by the sea", "One day, Mia found")


async def main(arguments: argparse.Namespace) -> None:
    counts = [int(count) for count in arguments.sequences.split(",")]
    most = max(counts)
    config = EngineConfig(
        max_sequences=most,
        max_context=1024,
        max_step_rows=max(512, 6 * most),
        kv_blocks=2048,
        cost_folder=None,
    )
    began = time.perf_counter()
    async with Engine.open(config=config, device=arguments.device) as engine:
        speculation = engine._host.wiring.scheduler.core._speculation
        print(f"open in {time.perf_counter() - began:.1f} s; graphs: {engine.stats().graphs}")
        curve = speculation._costs.curve
        rows = " ".join(f"{r}:{1e3 * s:.2f}" for r, s in zip(curve.rows, curve.seconds, strict=True))
        drafts = " ".join(
            f"{n}:{1e3 * s:.2f}" for n, s in zip(curve.sequences, curve.draft_seconds, strict=True)
        )
        print(f"ms by rows ({'padded' if curve.padded else 'as they are'}) {rows}")
        print(f"ms of drafts by sequences {drafts}")
        modes: dict[str, Any] = {
            "off": (lambda step, most: 0, lambda step: False),
            "all": (lambda step, most: most, lambda step: True),
            "adaptive": None,
        }
        for count in counts:
            texts = {}
            rates: dict[str, list[float]] = {name: [] for name in modes}
            for number in range(-1, arguments.rounds):
                for name, forced in modes.items():
                    speculation._forced = forced
                    tokens = arguments.tokens if number >= 0 else 24
                    texts[name], rate = await _run(engine, count, tokens, name if number >= 0 else "")
                    rates[name] += [rate] if number >= 0 else []
            typical = {name: statistics.median(many) for name, many in rates.items()}
            print("  medians:", ", ".join(f"{name} {rate:.0f}" for name, rate in typical.items()))
            same = sum(a == b for a, b in zip(texts["off"], texts["adaptive"], strict=True))
            print(f"  {same} of {count} texts equal with and without; {engine.stats().speculation}")
            model = speculation._costs
            print(f"  learned: load {model.load:.2f}, slope {1e6 * model.slope:.2f} us a row")


async def _run(engine: Engine, count: int, tokens: int, name: str) -> tuple[list[tuple[int, ...]], float]:
    """The texts, and tokens a second; what it did is printed under a name, if it has one."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = [f"{OPENINGS[n % 4]} {n}" for n in range(count)]
    then, began = engine.stats(), time.perf_counter()
    before = then.speculation
    done = await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
    seconds, now = time.perf_counter() - began, engine.stats()
    after = now.speculation
    if name:
        steps = max(after.decode_steps - before.decode_steps, 1)
        print(
            f"{count:4d} sequences, {name:8s}: {count * tokens / seconds:8.0f} tokens/s,"
            f" accept length {1 + (after.accepted - before.accepted) / steps:.2f},"
            f" verified {(after.verified - before.verified) / steps:.2f} a step;"
            f" {now.steps - then.steps} steps,"
            f" {1e3 * (now.timings.step.total - then.timings.step.total):.0f} ms"
            f" on the device in all, exposed host"
            f" {1e3 * (now.timings.exposed_host.total - then.timings.exposed_host.total):.0f} ms"
        )
    return [completion.token_ids for completion in done], count * tokens / seconds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", default="1,64")
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    asyncio.run(main(parser.parse_args()))
