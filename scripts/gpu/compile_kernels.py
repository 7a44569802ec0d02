"""Compile the kernels of some families without a card, for one architecture; print what each takes of it.

    python scripts/gpu/compile_kernels.py [FAMILY ...] [--architecture 90]
    python scripts/gpu/compile_kernels.py --model bfloat16

Runs the families' small checks on the CPU with a driver that compiles every launch and runs none of them, so
compile errors, shared memory beyond the limit and spilled registers are found before a card is asked for.
Results are then meaningless and nothing is compared. With `--model` it is a prompt and a decode step of the
built-in model that is launched so, in the given type. `--architecture 100` is a B200.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import check_graph
import measuring
import torch
import triton
from check_kernels import FAMILIES
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from stepahead.devices.kernels.selection import triton_operations
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.numerics import exact

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


class CompileOnlyDriver:
    """What Triton asks a driver before it compiles."""

    def __init__(self, architecture: int) -> None:
        self._target = GPUTarget("cuda", architecture, 32)

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_launches(seen: dict[str, str]) -> None:
    """From now on every launch compiles, reports into `seen` by kernel and variant, and does not run."""
    run = JITFunction.run

    def compile_only(
        self: JITFunction[Any], *args: object, grid: object, warmup: bool, **kwargs: object
    ) -> None:
        began = time.perf_counter()
        try:
            kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        except (triton.CompilationError, RuntimeError) as error:
            name = f"{self.fn.__name__} in {self.fn.__module__}"
            if name not in seen:
                seen[name] = "FAILED"
                print(f"{name} FAILED: {error}", flush=True)
            return
        if kernel is not None and kernel.hash not in seen:
            took = time.perf_counter() - began
            seen[kernel.hash] = (
                f"{self.fn.__name__:32} {kernel.metadata.num_warps:2} warps {resources(kernel)} {took:5.1f} s"
            )
            print(seen[kernel.hash], flush=True)

    JITFunction.run = compile_only


def resources(kernel: Any) -> str:
    """Registers and stack of a thread, shared memory of a program."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        text = subprocess.run([CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    registers, stack = found.groups() if found else ("?", "?")
    return f"{registers:>4} registers {stack:>5} stack {kernel.metadata.shared:>7} shared"


def zeros_for_empty() -> None:
    """What no kernel wrote must still be a valid index for the torch operations that follow."""
    torch.empty, torch.empty_like = torch.zeros, torch.zeros_like
    torch.Tensor.new_empty = torch.Tensor.new_zeros


def launch_model(dtype: torch.dtype) -> None:
    """A prompt, a decode step and a draft round, as check_graph runs them."""
    check_graph.DEVICE = torch.device("cpu")
    model = check_graph.open_model(check_graph.BUILT_IN, exact(dtype), triton_operations(dtype))
    prompts = check_graph.prompt_batch(2, model.config.vocab_size, model.config.engram_max_ngram_size)
    caches = model.new_caches(CacheShape(1 + 2 * check_graph.BLOCKS_PER_SEQUENCE, 3, max_rows=200))
    model.forward(prompts, caches)
    inputs = check_graph.DecodeInputs(*(torch.ones(2, n, dtype=torch.int64) for n in (1, 1, 3)))
    check_graph.step(model, dataclasses.replace(inputs, first=inputs.first.flatten() * 40), caches, 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--architecture", type=int, default=90)
    parser.add_argument("--model", choices=("float32", "bfloat16"))
    arguments = parser.parse_args()
    zeros_for_empty()
    driver.set_active(CompileOnlyDriver(arguments.architecture))
    measuring.DEVICE = torch.device("cpu")
    seen: dict[str, str] = {}
    compile_launches(seen)
    failed = []
    if arguments.model:
        launch_model(getattr(torch, arguments.model))
    for family in arguments.families or ([] if arguments.model else FAMILIES):
        try:
            # A check may stumble over numbers that no kernel wrote; what it launched until then is compiled.
            with torch.inference_mode(), contextlib.suppress(AssertionError):
                importlib.import_module(f"kernels_{family}").run(True)
        except Exception as error:
            failed.append(family)
            print(f"{family}: {type(error).__name__}: {error}", flush=True)
    print(
        f"{len(seen)} kernels compiled for sm_{arguments.architecture}; failed families: {failed or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
