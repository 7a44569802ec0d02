"""Compile the kernels of the slice's steps beforehand, in parallel.

Compiling takes longer than everything the benchmark measures, and one process compiles one kernel at a time.
So several processes walk through the same steps on tensors without memory, where every launch is only a
request to compile, and each compiles its share into the cache on disk that the benchmark then reads.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Sequence
from typing import Any

import torch

from stepahead.devices.kernels.selection import triton_operations
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import Numerics
from stepahead.engine.model.v41.rows import BLOCK_TOKENS

from . import gpu_slice_model as slice_model

Step = tuple[int, int, int]
"""Sequences, context, rows of each sequence."""

META = torch.device("meta")


def compile_steps(steps: Sequence[Step], numerics: Numerics, processes: int | None = None) -> None:
    """Fill the compiler's cache with the kernels of `steps`."""
    count = processes or min(16, os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_compile_share, args=(steps, numerics, rank, count)) for rank in range(count)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


def _compile_share(steps: Sequence[Step], numerics: Numerics, rank: int, count: int) -> None:
    requests: set[str] = set()

    def request(kernel: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        key = repr((kernel.__name__, [_described(a) for a in arguments], sorted(keywords.items(), key=str)))
        if key not in requests:
            requests.add(key)
            if len(requests) % count == rank:
                kernel.warmup(*arguments, **keywords)

    for_every_launch(steps, numerics, request)


def _described(argument: object) -> str:
    return str(argument.dtype) if isinstance(argument, torch.Tensor) else repr(argument)


def for_every_launch(steps: Sequence[Step], numerics: Numerics, request: Any) -> None:
    """Walk through `steps` without memory, calling `request(kernel, arguments, keywords)` for each launch."""
    from triton.runtime.jit import JITFunction

    original = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **keywords: Any) -> Any:
        if warmup:
            return original(self, *arguments, grid=grid, warmup=True, **keywords)
        return request(self, arguments, {"grid": grid, **keywords})

    JITFunction.run = run
    try:
        _walk(steps, numerics)
    finally:
        JITFunction.run = original


def _walk(steps: Sequence[Step], numerics: Numerics) -> None:
    from . import gpu_slice

    slice_model.DEVICE = gpu_slice.DEVICE = META
    config = slice_model.slice_config()
    model = Model(
        config,
        slice_model.slice_weights(config),
        numerics,
        operations=triton_operations(torch.bfloat16),
    )
    for batch, context, chunk in steps:
        columns = -(-context // BLOCK_TOKENS)
        caches = model.new_caches(CacheShape(1 + batch * columns, batch + 1, max(batch * chunk, 16)))
        inputs = (
            gpu_slice._prompt(context, chunk, model)
            if chunk > 1
            else gpu_slice._decode(batch, context, model)
        )
        model.forward(inputs, caches)
