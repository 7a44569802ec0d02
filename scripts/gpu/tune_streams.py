"""Time the opening of a sublayer with other tile sizes: what `hyper_connections.py` has its constants from.

    python scripts/gpu/tune_streams.py narrow wide finish

Prints microseconds of `expand_and_open` by configuration and number of rows, and for the present one the time
of each of its launches.
"""

from __future__ import annotations

import itertools
import sys

import torch
from kernels_streams import BUILT_IN, FULL, Sublayer
from measuring import microseconds

from stepahead.devices.kernels.triton import hyper_connections as kernels

GRIDS = {
    "narrow": {"NARROW_ROWS": (1, 2, 4), "NARROW_WARPS": (4, 8)},
    "wide": {"SLAB": (32, 64), "SLAB_WARPS": (2, 4)},
    "finish": {"NORM_COLUMNS": (512, 1024, 2048), "MANY_FINISHED": (4, 16)},
}
ROWS = {"narrow": (64, 320), "wide": (1, 64, 4096), "finish": (1, 64, 4096)}


def launches(sublayer: Sublayer) -> None:
    sublayer.expand_and_open()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            sublayer.expand_and_open()
        torch.cuda.synchronize()
    for event in profiler.key_averages():
        print(f"  {event.key[:40]:40} {event.device_time_total / event.count:8.2f} us")


def tune(which: str) -> None:
    width = BUILT_IN if which == "narrow" else FULL
    grid = GRIDS[which]
    present = {name: getattr(kernels, name) for name in grid}
    sublayers = {rows: Sublayer(rows, width, torch.bfloat16) for rows in ROWS[which]}
    for rows, sublayer in sublayers.items():
        print(rows, "rows")
        launches(sublayer)
    for values in itertools.product(*grid.values()):
        for name, value in zip(grid, values, strict=True):
            setattr(kernels, name, value)
        setting = " ".join(f"{n}={v}" for n, v in zip(grid, values, strict=True))
        try:
            times = [microseconds([s.expand_and_open], repeats=5) for s in sublayers.values()]
        except Exception as error:  # a tile beyond the card's limits
            print(setting, type(error).__name__, flush=True)
            continue
        print(setting, " ".join(f"{time:8.2f}" for time in times), flush=True)
    for name, value in present.items():
        setattr(kernels, name, value)


def main() -> None:
    with torch.inference_mode():
        for which in sys.argv[1:]:
            print(which, flush=True)
            tune(which)


if __name__ == "__main__":
    main()
