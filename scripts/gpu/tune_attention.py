"""Time block shapes of attention and of the indexer at the real model's size, to choose their constants.

    python scripts/gpu/tune_attention.py ROWS HEADS,TILE,WARPS[,STAGES] ...
    python scripts/gpu/tune_attention.py index

The first prints the time of every variant at that many rows (64 heads of 512, 128 + 512 keys); the second
the parts of a choice of entries: scores for several heights and warps, selection for several chunks.
"""

from __future__ import annotations

import sys
from functools import partial

import torch
from kernels_attention import REAL, places_of, turns_of
from kernels_indexer import problem
from measuring import DEVICE, microseconds

from stepahead.devices.kernels.reference.attention import KeyIndex
from stepahead.devices.kernels.reference.indexer import Candidates, ChosenEntries
from stepahead.devices.kernels.triton import attention, indexer


def time_attention(rows: int, variants: list[str]) -> None:
    slots = max(4096, rows * (REAL.window + 8))
    pools = [torch.randn(slots, REAL.dim, device=DEVICE).bfloat16() for _ in range(2)]
    query = torch.randn(rows, REAL.heads, REAL.dim, device=DEVICE).bfloat16()
    turns, sink = turns_of(rows, REAL.rotary), torch.randn(REAL.heads, device=DEVICE)
    indexes = [KeyIndex(places_of(rows, n, slots), torch.float32) for n in (REAL.window, REAL.entries)]
    for variant in variants:
        shape = tuple(int(x) for x in variant.split(","))
        attention.TILES, attention._shape = shape[:3], lambda *_, shape=shape: shape
        run = partial(
            attention.attend, query, turns, pools[0], indexes[0], pools[1], indexes[1], sink, REAL.dim**-0.5,
            round_probabilities=True,
        )  # fmt: skip
        try:
            print(f"rows {rows:5} {variant:20} {microseconds([run]):9.1f} us", flush=True)
        except Exception as error:  # a variant that does not fit the card is a result
            print(f"rows {rows:5} {variant:20} {type(error).__name__}", flush=True)


def time_choice() -> None:
    cases = (
        (1, 1, 131072, 1024, True), (1, 1, 16384, 128, True), (1, 1024, 16384, 128, True),
        (64, 1, 16384, 128, True), (1, 1, 1024, 8, True),
    )  # fmt: skip
    for sequences, each, context, columns, real in cases:
        heads, dim, count, dtype = (32, 128, 512, torch.bfloat16) if real else (4, 32, 64, torch.float32)
        per_block = 128 if real else 64
        query, keys, view = problem(sequences, each, context, heads, dim, dtype, per_block, columns)
        rows = sequences * each
        print(f"{sequences}x{each} of {context}", end="")
        default = indexer.DIRECT, indexer.PER_THREAD
        choice = Candidates(8, 2048, None, True)
        blocks = torch.empty(rows, 2048, dtype=torch.int32, device=DEVICE)
        entries, places = torch.empty(2, rows, count, dtype=torch.int32, device=DEVICE).unbind()
        for direct, depth in ((4096, 8), (4096, 16), (8192, 8)):
            indexer.DIRECT, indexer.PER_THREAD = direct, depth
            kept = indexer._Kept.of(view.available, count, choice, per_block if per_block < 64 else 64)
            wide = torch.uint16 if real else torch.uint32
            ranks = torch.zeros(rows, kept.stride * indexer.ALIGNED.value, device=DEVICE, dtype=wide)
            scoring = partial(indexer._score, query, keys, view, choice, kept, ranks, 0, rows)
            both = ChosenEntries(entries, places, blocks)
            some = partial(indexer._select, ranks, view, choice, kept, both, 0)
            only = kept._replace(blocks=0), both._replace(candidate_blocks=None)
            best = partial(indexer._select, ranks, view, choice, *only, 0)
            times = " ".join(f"{microseconds([timed]):6.1f}" for timed in (scoring, some, best))
            print(f"  {direct}/{depth} {times}", end="", flush=True)
        indexer.DIRECT, indexer.PER_THREAD = default
        whole = partial(indexer.choose_entries, query, keys, view, count, Candidates(8, 2048, None, False))
        print(f"  whole {microseconds([whole]):9.1f}", flush=True)


def main() -> None:
    with torch.inference_mode():
        if sys.argv[1] == "index":
            time_choice()
        else:
            time_attention(int(sys.argv[1]), sys.argv[2:])


if __name__ == "__main__":
    main()
