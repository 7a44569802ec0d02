"""The command line: many seeds, or one script again."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

from .check import Verdict, check
from .generate import generate
from .script import Script, from_json, to_json
from .shrink import shrink


def main() -> int:
    options = _parse()
    if options.replay is not None:
        verdict = check(from_json(options.replay.read_text()))
        print(verdict.report or "right")
        return 0 if verdict.right else 1
    first, last = (int(part) for part in options.seeds.split(":"))
    started, failures, counts = time.monotonic(), 0, Counter[str]()
    for seed in range(first, last):
        script = generate(seed)
        verdict = check(script)
        if verdict.run is not None:
            counts.update(verdict.run.counts)
        if not verdict.right:
            failures += 1
            _report(seed, script, verdict, options.shrink)
            if failures >= options.failures:
                break
    done, seconds = seed + 1 - first, time.monotonic() - started
    print(f"{done} workloads, {failures} wrong; {seconds:.1f} s, {60 * done / seconds:.0f} a minute")
    print(", ".join(f"{count} {name}" for name, count in counts.items()))
    return 1 if failures else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.checker", description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="a range, first:last")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--no-shrink", dest="shrink", action="store_false", help="print scripts as generated")
    parser.add_argument("--replay", type=Path, help="a file with a script as JSON")
    return parser.parse_args()


def _report(seed: int, script: Script, verdict: Verdict, smaller: bool) -> None:
    print(f"seed {seed}: {verdict.kind}", flush=True)
    if smaller:
        script = shrink(script, lambda candidate: check(candidate).kind == verdict.kind)
        verdict = check(script)
    print(verdict.report)
    print(f"# from tests.checker.script import *; check({script!r})")
    print(to_json(script), flush=True)


if __name__ == "__main__":
    sys.exit(main())
