"""Serve a model over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import logging
import os
import sys
from pathlib import Path
from typing import Any

from ..engine import Engine
from ..errors import EngineError

HELP = "serve a model over HTTP: OpenAI's chat completions and responses, Anthropic's messages"
_KEYS = "STEPAHEAD_API_KEYS"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def option(name: str, help_text: str, **settings: Any) -> None:
        parser.add_argument(name, help=help_text, **settings)

    option("--model", "checkpoint folder (the small model that ships with Stepahead)", type=Path,
           metavar="PATH")  # fmt: skip
    option("--name", "what requests may call the model (its folder's name, and stepahead); may be repeated",
           action="append", default=[])  # fmt: skip
    option("--host", "address to listen at (127.0.0.1: this machine only)", default="127.0.0.1")
    option("--port", "0 takes a free one (8000)", type=int, default=8000)
    option("--device", "where to compute: cpu, cuda, cuda:1 ... (cpu)", default="cpu")
    option("--no-thinking", "answer at once where a request does not say", action="store_true")
    option("--official", "treat requests exactly as DeepSeek's codec does", action="store_true")
    option("--keep-users-apart", "never share cached prompts between users", action="store_true")
    parser.epilog = f"Clients must send one of the keys in {_KEYS} (separated by commas), if there are any."


def run(arguments: argparse.Namespace) -> int:
    from ..opening import new_loop

    logging.basicConfig(level=logging.WARNING)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_serve(arguments))
    return 0


async def _serve(arguments: argparse.Namespace) -> None:
    # The protocols are a floor above this one, and optional: named here, imported only when asked for.
    try:
        serving = importlib.import_module("stepahead.recipe.serve")
        options = importlib.import_module("stepahead.recipe.server.options")
    except ImportError as error:
        raise EngineError(f"serving needs {error.name}: pip install 'stepahead[http]'") from error
    names = arguments.name or ["stepahead", *([arguments.model.resolve().name] if arguments.model else ())]
    chosen = options.ServerOptions(
        models=dict.fromkeys(names, "v4.1"),
        default_thinking_mode=not arguments.no_thinking,
        official=arguments.official,
        isolate_users=arguments.keep_users_apart,
        api_keys=tuple(key for key in os.environ.get(_KEYS, "").split(",") if key),
    )
    async with Engine.open(arguments.model, device=arguments.device) as engine:
        gc.freeze()  # what is here stays: full collections need not look at it while all streams wait
        try:
            await serving.serve(
                engine, chosen, host=arguments.host, port=arguments.port, on_ready=_say_address
            )
        except OSError as error:
            raise EngineError(f"cannot listen at {arguments.host}:{arguments.port}: {error}") from error


def _say_address(address: str) -> None:
    print(f"serving at {address}/v1, Ctrl-C to stop", file=sys.stderr, flush=True)
