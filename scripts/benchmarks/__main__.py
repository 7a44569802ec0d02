"""`scripts/bench NAME`: find the benchmark, run it."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path


def _names() -> list[str]:
    """Modules that declare themselves a benchmark; the others help them."""
    files = Path(__file__).parent.glob("[!_]*.py")
    return sorted(file.stem for file in files if "\nHELP = " in file.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure, print a table, write JSON to out/."
    )
    subparsers = parser.add_subparsers(required=True, metavar="benchmark")
    for name in _names():
        module = importlib.import_module(f"benchmarks.{name}")
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
