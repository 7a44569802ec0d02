"""Time whole steps of the full-width slice with other constants of the kernels, one variant after the other.

    python scripts/gpu/tune_slice.py STEP,STEP,... VARIANT ... [/ STEP,... VARIANT ...]

A STEP is SEQUENCES:CONTEXT:ROWS. A VARIANT is `plain` or some of, joined by `+`:
`stream=WIDTH,STEP,WARPS,STAGES`, `parts=PROGRAMS,LEAST_COLUMNS`, `halves=TILE,STAGES`, `experts=...` (the
numbers of `experts._Shape`), `height=ROWS` of an expert's tile, `slab=ROWS,WARPS` of hyper-connections,
`select=DIRECT,PER_THREAD` of a selection, `scores=PROGRAMS,STAGES` of the indexer.

Variants are compiled in parallel first.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks import gpu_slice, gpu_slice_warm
from benchmarks.gpu_slice_model import BF16, DEVICE, slice_config, slice_weights

from stepahead.devices.kernels.selection import triton_operations
from stepahead.devices.kernels.triton import (
    attention,
    experts,
    hyper_connections,
    indexer,
    products,
    routing,
)
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import exact
from stepahead.engine.model.v41.rows import BLOCK_TOKENS

PRESENT = {
    (module, name): getattr(module, name)
    for module, name in (
        (products, "_shape"), (products, "_PROGRAMS"), (products, "LEAST_COLUMNS"),
        (attention, "HALVES"), (experts, "_shape"), (routing, "tile_height"), (indexer, "DIRECT"),
        (indexer, "PER_THREAD"), (indexer, "PROGRAMS"), (indexer, "STAGES"),
        (hyper_connections, "ROWS"), (hyper_connections, "SLAB_WARPS"),
    )
}  # fmt: skip


Trial = tuple[str, list[gpu_slice_warm.Step]]
"""A variant and the steps it is timed with."""


def always(value: object) -> Callable[..., Any]:
    return lambda *_: value


def use(variant: str) -> None:
    for (module, name), value in PRESENT.items():
        setattr(module, name, value)
    for setting in variant.split("+"):
        key, _, text = setting.partition("=")
        numbers = tuple(int(number) for number in text.split(",")) if text else ()
        if key == "stream":
            products._shape = always(products._Shape(*numbers))
        elif key == "parts":
            products._PROGRAMS, products.LEAST_COLUMNS = numbers
        elif key == "halves":
            attention.HALVES = numbers
        elif key == "experts":
            experts._shape = always(experts._Shape(*numbers))
        elif key == "height":
            routing.tile_height = always(numbers[0])
        elif key == "slab":
            hyper_connections.ROWS, hyper_connections.SLAB_WARPS = numbers
        elif key == "select":
            indexer.DIRECT, indexer.PER_THREAD = numbers
        elif key == "scores":
            indexer.PROGRAMS, indexer.STAGES = numbers


def compile_share(variant: str, steps: list[gpu_slice_warm.Step], rank: int, count: int) -> None:
    use(variant)
    gpu_slice_warm._compile_share(steps, exact(BF16), rank, count)


def compile_all(trials: list[Trial]) -> None:
    """The first variant of every group by all processes, then what the others have beyond it."""
    begin, done = time.perf_counter(), compiled_mark(trials)
    if done.exists():
        return
    context = multiprocessing.get_context("spawn")
    seen: set[tuple[gpu_slice_warm.Step, ...]] = set()
    first, others = [], []
    for variant, steps in trials:
        (others if tuple(steps) in seen else first).append((variant, steps))
        seen.add(tuple(steps))
    for some in (first, others):
        shares = max(1, 16 // max(1, len(some)))
        workers = [
            context.Process(target=compile_share, args=(*trial, rank, shares))
            for trial in some
            for rank in range(shares)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(f"compiled in {time.perf_counter() - begin:.0f} s", flush=True)
    done.touch()


def compiled_mark(trials: list[Trial]) -> Path:
    """A file in the compiler's cache: these kernels are there. Walking to each takes half a minute."""
    sources = [path.read_bytes() for path in sorted(Path(experts.__file__).parent.glob("*.py"))]
    name = hashlib.sha256(repr((trials, sources)).encode()).hexdigest()[:16]
    return Path(os.environ.get("TRITON_CACHE_DIR", tempfile.gettempdir())) / f"compiled_{name}"


def time_step(model: Model, step: gpu_slice_warm.Step) -> str:
    batch, context, chunk = step
    columns = -(-context // BLOCK_TOKENS)
    caches = model.new_caches(CacheShape(1 + batch * columns, batch + 1, max(batch * chunk, 16)))
    torch.manual_seed(1)  # variants that compute the same print the same numbers
    gpu_slice._fill(caches)
    inputs = (
        gpu_slice._prompt(context, chunk, model) if chunk > 1 else gpu_slice._decode(batch, context, model)
    )
    outputs = []

    def forward() -> None:
        outputs.append(model.forward(inputs, caches).logits)

    timed = gpu_slice._time(forward, graph=chunk == 1)
    logits = outputs[-1].double()  # of the last call: with a graph, what its replays have written
    kernels = sorted(timed.kernels.items(), key=lambda item: -item[1][1])[:18]
    listed = ", ".join(f"{name[:13]} {count}x{us:.0f}" for name, (count, us) in kernels)
    digest = f"{logits.norm().item():.6f} {logits[0, :3].tolist()}"
    return f"{timed.microseconds:8.0f} us; {digest}; {listed}"


def trials_of(arguments: list[str]) -> list[Trial]:
    trials: list[Trial] = []
    for group in " ".join(arguments).split(" / "):
        text, *variants = group.split()
        steps = [tuple(map(int, step.split(":"))) for step in text.split(",")]
        trials += [(variant, steps) for variant in variants]  # type: ignore[misc]
    return trials


def main() -> None:
    trials = trials_of(sys.argv[1:])
    compile_all(trials)
    config = slice_config()
    model = Model(config, slice_weights(config), exact(BF16), operations=triton_operations(BF16))
    print(f"{torch.cuda.get_device_name()}, weights on {DEVICE}", flush=True)
    for variant, steps in trials:
        for step in steps:
            use(variant)
            try:
                print(f"{variant} {step} {time_step(model, step)}", flush=True)
            except Exception as error:  # a variant that does not fit the card is a result
                print(f"{variant} {step} {type(error).__name__} {str(error)[:100]}", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
