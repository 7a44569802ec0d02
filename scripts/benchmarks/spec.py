"""Speculation on a CPU: that it changes no token, what it gains one user, and that it costs many nothing.

`--equality` compares every way of speculating with none, token for token; `--saved` counts the rows that
adaptive verification leaves out. Otherwise engines take turns over the same prompts: without drafts, with all
of them verified, and adaptive; at one user, and at 64 and 256.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from . import spec_equality, spec_saved, spec_speed

HELP = "speculation: equal texts in every mode (--equality), tokens/s and rows saved against none"

_CORPUS = Path(__file__).parents[2] / ".train/corpus.npz.xz"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--equality", action="store_true", help="compare texts and logprobs of all modes")
    parser.add_argument("--saved", action="store_true", help="rows that adaptive verification saves")
    parser.add_argument("--prompts", type=int, default=200, metavar="N", help="of the comparison (200)")
    parser.add_argument("--tokens", type=int, metavar="N", help="to generate (equality 24, else by batch)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="turns of each engine (3)")
    parser.add_argument("--only", metavar="TEXT", default="", help="cases whose name contains this")
    parser.add_argument("--corpus", type=Path, default=_CORPUS, metavar="FILE", help="held-out documents")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="another model than the built-in one")


def run(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    chosen = spec_equality if arguments.equality else spec_saved if arguments.saved else spec_speed
    chosen.run(arguments)
