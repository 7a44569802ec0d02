"""Time program sizes of the expert kernels at the published dimensions: which one wins for which rows.

    python scripts/gpu/tune_experts.py ROWS/TILE_HEIGHT SIZES ...

SIZES are the numbers of `experts._Shape`, with commas between.

Sizes are compiled in parallel processes first; the compiler takes longer than everything else.
"""

from __future__ import annotations

import functools
import multiprocessing
import sys
import time
from collections.abc import Callable

import torch
from kernels_experts import FP8, MXFP4, REAL, Layer
from measuring import ceilings, microseconds

from stepahead.devices.kernels.triton import experts, routing


def use(sizes: tuple[int, ...], height: int) -> None:
    experts._shape = lambda dtype, tile_height, rows, form: experts._Shape(*sizes)
    routing.tile_height = lambda picks, count, dtype: height


def compile_one(sizes: tuple[int, ...], height: int, rows: int) -> None:
    use(sizes, height)
    layer = Layer(8, 6, **REAL, routed=MXFP4, shared=FP8)
    x = layer.inputs(rows)
    layer.mix(x, layer.route(x))
    torch.cuda.synchronize()


def by_kernel(call: Callable[[], object]) -> str:
    """Microseconds of every kernel of one call, largest first."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    events = sorted(profile.key_averages(), key=lambda event: -event.self_device_time_total)
    return ", ".join(f"{event.key[:14]} {event.self_device_time_total / 3:.1f}" for event in events[:6])


def main() -> None:
    rows, height = map(int, sys.argv[1].split("/"))
    candidates = [tuple(map(int, text.split(","))) for text in sys.argv[2:]]
    begin = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=compile_one, args=(c, height, rows)) for c in candidates]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"compiled in {time.perf_counter() - begin:.1f} s", flush=True)
    layer = Layer(384, 6, **REAL, routed=MXFP4, shared=FP8)
    inputs = [layer.inputs(rows) for _ in range(4 if rows <= 256 else 1)]
    rate = ceilings()
    for sizes, worker in zip(candidates, workers, strict=True):
        if worker.exitcode:
            print(sizes, "failed")
            continue
        use(sizes, height)
        chosen = [layer.route(x) for x in inputs]
        moved = sum(layer.moved(c.chosen) for c in chosen) / len(chosen)
        calls = [functools.partial(layer.mix, x, c) for x, c in zip(inputs, chosen, strict=True)]
        took = microseconds(calls, graph=rows <= 256, repeats=8)
        floors = moved / rate.bytes_per_us, layer.flops(rows) / rate.flops_per_us[torch.bfloat16]
        print(sizes, f"{took:.1f} us, bytes floor {floors[0]:.1f}, flops floor {floors[1]:.1f};", end=" ")
        print(by_kernel(lambda: layer.mix(inputs[0], layer.route(inputs[0]))), flush=True)


if __name__ == "__main__":
    with torch.inference_mode():
        main()
