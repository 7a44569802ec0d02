"""Continue a text, or answer a message, on the terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import InvalidParameterError
from ..text.stop_matcher import StopMatcher

if TYPE_CHECKING:
    from ..model.opening import OnTensor, OpenModel
    from ..text.tokenizer import Tokenizer

HELP = "continue a text and print it as it is generated (the default command)"
BUILT_IN_MODEL = Path(__file__).parents[1] / "nano"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def option(name: str, help_text: str, **settings: Any) -> None:
        parser.add_argument(name, help=help_text, **settings)

    option("prompt", "text to continue; read from standard input if absent", nargs="?")
    option("--model", "checkpoint folder (the small model that ships with Stepahead)", type=Path,
           default=BUILT_IN_MODEL, metavar="PATH")  # fmt: skip
    option("--max-tokens", "most tokens to generate (128)", type=int, default=128, metavar="N")
    option("--temperature", "0 always takes the likeliest token (0.7)", type=float, default=0.7, metavar="T")
    option("--seed", "of the random choices (0)", type=int, default=0, metavar="N")
    option("--stop", "end before this text; may be repeated", action="append", default=[], metavar="TEXT")
    option("--chat", "treat the prompt as a message and print the answer", action="store_true")
    option("--random-weights", "do not read weights: the model babbles", action="store_true")


def run(arguments: argparse.Namespace) -> int:
    from ..model.opening import open_model
    from ..model.plain_loop import generate

    _check(arguments)
    prompt = sys.stdin.read() if arguments.prompt is None else arguments.prompt
    with _loading_bar(sys.stderr) as on_tensor:
        opened = open_model(arguments.model, random_weights=arguments.random_weights, on_tensor=on_tensor)
    ids = chat_prompt(opened.tokenizer, prompt) if arguments.chat else opened.tokenizer.encode(prompt)
    if not arguments.chat:
        print(prompt, end="", flush=True)
    tokens = generate(
        opened.model,
        ids,
        max_tokens=arguments.max_tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
    )
    _print_text(opened, tokens, arguments.stop)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.max_tokens < 0:
        raise InvalidParameterError("--max-tokens", arguments.max_tokens, "0 or more")
    if not 0 <= arguments.temperature < float("inf"):
        raise InvalidParameterError("--temperature", arguments.temperature, "0 or more, and finite")


def chat_prompt(tokenizer: Tokenizer, message: str) -> list[int]:
    """One user message in the V4.1 form, answered without visible reasoning.

    The message is encoded literally: a special token spelled by the user stays the characters it is.
    """
    before, after = ("<｜begin▁of▁sentence｜>", "<｜User｜>"), ("<｜Assistant｜>", "</think>")
    return [
        *(tokenizer.token_id(token) for token in before),
        *tokenizer.encode(message, literal=True),
        *(tokenizer.token_id(token) for token in after),
    ]


def _print_text(opened: OpenModel, tokens: Iterator[int], stops: list[str]) -> None:
    """Stream to standard output; on a terminal, a line about speed follows on standard error."""
    begun, count = time.perf_counter(), 0

    def counted() -> Iterator[int]:
        nonlocal count
        for token in tokens:
            count += 1
            yield token

    for text in _visible_text(opened.tokenizer, counted(), stops):
        print(text, end="", flush=True)
    print()
    seconds = time.perf_counter() - begun
    if sys.stderr.isatty():
        print(f"{count} tokens in {seconds:.1f} s, {count / seconds:.0f} tokens/s", file=sys.stderr)


def _visible_text(tokenizer: Tokenizer, tokens: Iterable[int], stops: list[str]) -> Iterator[str]:
    detokenizer, matcher = tokenizer.detokenizer(), StopMatcher(stops)
    for token in tokens:
        yield matcher.push(detokenizer.push((token,)))
        if matcher.matched is not None:
            return
    yield matcher.push(detokenizer.finish()) + matcher.finish()


@contextlib.contextmanager
def _loading_bar(stream: TextIO) -> Iterator[OnTensor]:
    """A progress bar while weights load; nothing where nobody watches."""
    if not stream.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(file=stream), transient=True) as progress:
        task = progress.add_task("loading weights")
        yield lambda done, total: progress.update(task, completed=done, total=total)
