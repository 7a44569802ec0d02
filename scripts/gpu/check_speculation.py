"""What a decode step costs by its rows on a card, and what speculation makes of it: none, all, adaptive.

    python scripts/gpu/check_speculation.py [--sequences 1,64] [--tokens N] [--device cuda]

One engine of the built-in model; the mode is switched between runs, so that graphs are captured once. Greedy
texts of all modes must be equal up to rounding: the share of equal texts is printed, not judged.
"""

from __future__ import annotations

import argparse
import asyncio
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
            for name, forced in modes.items():
                speculation._forced = forced
                await _run(engine, count, 24)
                texts[name] = await _run(engine, count, arguments.tokens, name)
            for name in ("all", "adaptive"):  # again: what was captured first is warm now
                speculation._forced = modes[name]
                await _run(engine, count, arguments.tokens, name)
            same = sum(a == b for a, b in zip(texts["off"], texts["adaptive"], strict=True))
            print(f"  {same} of {count} texts equal with and without; {engine.stats().speculation}")
            model = speculation._costs
            print(f"  learned: load {model.load:.2f}, slope {1e6 * model.slope:.2f} us a row")


async def _run(engine: Engine, count: int, tokens: int, name: str = "") -> list[tuple[int, ...]]:
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
    return [completion.token_ids for completion in done]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sequences", default="1,64")
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--device", default="cuda")
    asyncio.run(main(parser.parse_args()))
