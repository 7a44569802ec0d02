"""Continue a text, or answer a message, on the terminal."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from ..backend import OpenRunnerOptions, model_opener
from ..config import EngineConfig
from ..engine import Engine
from ..errors import InvalidParameterError
from ..types import SamplingParams

HELP = "continue a text and print it as it is generated (the default command)"
BUILT_IN_MODEL = Path(__file__).parents[1] / "nano"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def option(name: str, help_text: str, **settings: Any) -> None:
        parser.add_argument(name, help=help_text, **settings)

    option("prompt", "text to continue; read from standard input if absent", nargs="?")
    option("--model", "checkpoint folder (the small model that ships with Stepahead)", type=Path,
           default=BUILT_IN_MODEL, metavar="PATH")  # fmt: skip
    option("--device", "where to compute: cpu, cuda, cuda:1 ... (cpu)", default="cpu")
    option("--max-tokens", "most tokens to generate (128)", type=int, default=128, metavar="N")
    option("--temperature", "0 always takes the likeliest token (0.7)", type=float, default=0.7, metavar="T")
    option("--seed", "of the random choices (0)", type=int, default=0, metavar="N")
    option("--stop", "end before this text; may be repeated", action="append", default=[], metavar="TEXT")
    option("--chat", "treat the prompt as a message and print the answer", action="store_true")
    option("--random-weights", "do not read weights: the model babbles", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    from ..opening import new_loop

    _check(arguments)
    prompt = sys.stdin.read() if arguments.prompt is None else arguments.prompt
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_continue(arguments, prompt))
    return 0


async def _continue(arguments: argparse.Namespace, prompt: str) -> None:
    """Stream to standard output; on a terminal, a line about speed follows on standard error."""
    params = SamplingParams(
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
        stop=tuple(arguments.stop),
    )
    async with _open(arguments) as engine:
        if not arguments.chat:
            print(prompt, end="", flush=True)
        begun, count = time.perf_counter(), 0
        asked = [{"role": "user", "content": prompt}] if arguments.chat else prompt
        async for delta in engine.stream(asked, params):
            print(delta.text, end="", flush=True)
            count += len(delta.token_ids)
        print()
        if sys.stderr.isatty():
            seconds = time.perf_counter() - begun
            print(f"{count} tokens in {seconds:.1f} s, {count / seconds:.0f} tokens/s", file=sys.stderr)


@contextlib.asynccontextmanager
async def _open(arguments: argparse.Namespace) -> AsyncIterator[Engine]:
    """An engine for one sequence: nothing to share, so no prefixes are kept."""
    config = EngineConfig(max_sequences=1, prefix_cache=False)
    with _loading_bar(sys.stderr) as on_tensor:
        options = OpenRunnerOptions(random_weights=arguments.random_weights, on_tensor=on_tensor)
        opener = model_opener(arguments.model, arguments.device, options=options)
        engine = await Engine.open(config=config, opener=opener)
    try:
        yield engine
    finally:
        await engine.close()


def _check(arguments: argparse.Namespace) -> None:
    if arguments.max_tokens < 0:
        raise InvalidParameterError("--max-tokens", arguments.max_tokens, "0 or more")
    if not 0 <= arguments.temperature < float("inf"):
        raise InvalidParameterError("--temperature", arguments.temperature, "0 or more, and finite")


@contextlib.contextmanager
def _loading_bar(stream: TextIO) -> Iterator[Callable[[int, int], None]]:
    """A progress bar while weights load; nothing where nobody watches."""
    if not stream.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=stream), transient=True) as progress:
        task = progress.add_task("loading weights")
        yield lambda done, total: progress.update(task, completed=done, total=total)
