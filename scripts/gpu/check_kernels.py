"""Check every kernel of the Triton set against its reference twin on the card, and time it.

    python scripts/gpu/check_kernels.py [FAMILY ...] [--small] [--dtype bfloat16]

A family is a file `kernels_FAMILY.py` beside this one with `run(small: bool) -> list[Row]`; without names all
of them run. `--small` asks for small shapes and times nothing: for compute-sanitizer, which is slow.
Prints one table; exits non-zero when an error is above its limit.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

import torch
from measuring import DTYPES, Row, ceilings, print_table

FAMILIES = sorted(path.stem.removeprefix("kernels_") for path in Path(__file__).parent.glob("kernels_*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--dtype", choices=[str(dtype)[6:] for dtype in DTYPES])
    arguments = parser.parse_args()
    if arguments.dtype:
        DTYPES[:] = [getattr(torch, arguments.dtype)]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    if not arguments.small:
        measured = ceilings()
        rates = ", ".join(
            f"{rate / 1e6:.0f} TFLOP/s {str(d)[6:]}" for d, rate in measured.flops_per_us.items()
        )
        print(f"copy {measured.bytes_per_us / 1e6:.2f} TB/s, matmul {rates}", flush=True)
    rows: list[Row] = []
    for family in arguments.families or FAMILIES:
        begin = time.perf_counter()
        with torch.inference_mode():
            new = importlib.import_module(f"kernels_{family}").run(arguments.small)
        print(f"{family}: {len(new)} rows in {time.perf_counter() - begin:.1f} s", flush=True)
        rows += new
    print_table(rows)
    failed = [row for row in rows if row.failed]
    print(f"{len(rows)} rows, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
