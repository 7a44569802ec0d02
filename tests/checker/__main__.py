"""The command line: many seeds, or one script again."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

from .check import check
from .generate import generate
from .script import Script, from_json, to_json
from .shrink import shrink


class Outcome(msgspec.Struct, frozen=True):
    """What became of one seed, without the run, so that it can cross processes."""

    seed: int
    kind: str
    counts: dict[str, int]


def main() -> int:
    options = _parse()
    if options.replay is not None:
        verdict = check(from_json(options.replay.read_text()))
        print(verdict.report or "right")
        return 0 if verdict.right else 1
    first, last = (int(part) for part in options.seeds.split(":"))
    started, done, failures, counts = time.monotonic(), 0, 0, Counter[str]()
    for outcome in _outcomes(range(first, last), options.jobs):
        done += 1
        counts.update(outcome.counts)
        if outcome.kind:
            failures += 1
            _report(outcome, options.shrink)
            if failures >= options.failures:
                break
    seconds = time.monotonic() - started
    print(f"{done} workloads, {failures} wrong; {seconds:.1f} s, {60 * done / seconds:.0f} a minute")
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if failures else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="a range, first:last")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="print scripts as generated")
    parser.add_argument("--replay", type=Path, help="a file with a script as JSON")
    return parser.parse_args()


def _outcomes(seeds: range, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(_outcome, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for part in _parts(seeds, 64 * jobs):
            yield from pool.map(_outcome, part, chunksize=8)


def _parts(seeds: range, size: int) -> Iterator[range]:
    return (seeds[start : start + size] for start in range(0, len(seeds), size))


def _outcome(seed: int) -> Outcome:
    verdict = check(generate(seed))
    return Outcome(seed, verdict.kind, {} if verdict.run is None else verdict.run.counts)


def _report(outcome: Outcome, smaller: bool) -> None:
    print(f"seed {outcome.seed}: {outcome.kind}", flush=True)
    script = generate(outcome.seed)
    if smaller:
        script = shrink(script, lambda candidate: check(candidate).kind == outcome.kind)
    print(check(script).report)
    print(program(script), flush=True)


def program(script: Script) -> str:
    """A test of the script, ready to be pasted."""
    lines = (
        "from tests.checker.check import check",
        "from tests.checker.script import Client, DeviceScript, Event, Knobs, Model, Script",
        "",
        "",
        "def test_found() -> None:",
        f"    verdict = check({script!r})",
        "    assert verdict.right, verdict.report",
        "",
        f"# As JSON, for --replay: {to_json(script)}",
    )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
