"""Run the expert kernels once at the published dimensions, for a profiler to look at.

ncu --clock-control none -k regex:gate_up -c 1 --section ... python scripts/gpu/profile_experts.py ROWS
"""

from __future__ import annotations

import sys

import torch
from kernels_experts import FP8, MXFP4, REAL, Layer


def main() -> None:
    layer = Layer(384, 6, **REAL, routed=MXFP4, shared=FP8)
    x = layer.inputs(int(sys.argv[1]))
    layer.mix(x, layer.route(x))
    torch.cuda.synchronize()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
