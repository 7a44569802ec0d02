"""`python -m stepahead`: the command line.

`generate` needs no name: whatever does not start with a subcommand is its arguments, so that the shortest
thing a curious person types works. A prompt that is exactly a subcommand's name needs `generate` in front.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .errors import StepaheadError

_DEFAULT = "generate"
_OWN_OPTIONS = frozenset({"-h", "--help", "--version"})
_INTERRUPTED = 130  # 128 + SIGINT, what a shell reports for a process ended by Ctrl-C


def _commands() -> list[str]:
    """Modules of the `commands` package, the default first."""
    found = {file.stem for file in (Path(__file__).parent / "commands").glob("[!_]*.py")}
    return [_DEFAULT, *sorted(found - {_DEFAULT})]


def _version() -> str:
    import stepahead

    return f"stepahead {stepahead.__version__}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stepahead",
        description="Run DeepSeek-V4.1 models. Without a command: generate.",
        epilog='Example: stepahead "Once upon a time"',
    )
    parser.add_argument("--version", action="version", version=_version())
    subparsers = parser.add_subparsers(required=True, metavar="command")
    for name in _commands():
        module = importlib.import_module(f"stepahead.engine.commands.{name}")
        subparser = subparsers.add_parser(name, help=module.HELP, description=module.HELP)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run)
    return parser


def _with_default_command(arguments: Sequence[str]) -> list[str]:
    if not arguments:
        return ["--help"]
    if arguments[0] in _OWN_OPTIONS or arguments[0] in _commands():
        return list(arguments)
    return [_DEFAULT, *arguments]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the result is the process's exit status. Errors of ours are one line on stderr."""
    given = sys.argv[1:] if arguments is None else arguments
    parsed = _parser().parse_args(_with_default_command(given))
    try:
        status: int = parsed.run(parsed)
    except StepaheadError as error:
        print(f"stepahead: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # `stepahead ... | head`: nobody reads on, and the exit's flush must not complain
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    raise SystemExit(main())
