"""Time block shapes of attention and of the indexer at the real model's size, to choose their constants.

    python scripts/gpu/tune_attention.py ROWS HEADS,TILE,WARPS,STAGES,SPLITS ...
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
from stepahead.devices.kernels.reference.indexer import Candidates
from stepahead.devices.kernels.triton import attention, indexer


def time_attention(rows: int, variants: list[str]) -> None:
    slots = max(4096, rows * (REAL.window + 8))
    pools = [torch.randn(slots, REAL.dim, device=DEVICE).bfloat16() for _ in range(2)]
    query = torch.randn(rows, REAL.heads, REAL.dim, device=DEVICE).bfloat16()
    turns, sink = turns_of(rows, REAL.rotary), torch.randn(REAL.heads, device=DEVICE)
    indexes = [KeyIndex(places_of(rows, n, slots), torch.float32) for n in (REAL.window, REAL.entries)]
    for variant in variants:
        shape = tuple(int(x) for x in variant.split(","))
        attention._shape = lambda *_, shape=shape: shape
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
        (64, 1, 600, 8, False), (1, 1, 1024, 10, True), (64, 1, 1024, 10, True), (1, 1, 16384, 130, True),
        (64, 1, 16384, 130, True), (1, 1, 131072, 1026, True), (1, 1024, 16384, 130, True),
    )  # fmt: skip
    for sequences, each, context, columns, real in cases:
        heads, dim, count, dtype = (32, 128, 512, torch.bfloat16) if real else (4, 32, 64, torch.float32)
        per_block = 128 if real else 64
        query, keys, view = problem(sequences, each, context, heads, dim, dtype, per_block, columns)
        rows = sequences * each
        listing = indexer._Listing(indexer.ENTRIES.value, 8, 1, None)
        scores = torch.randn(rows, view.available, device=DEVICE)
        scoring = partial(indexer._score, query, keys, view, listing, torch.empty_like(scores), 0, rows)
        entries, places = torch.empty(2, rows, count, dtype=torch.int32, device=DEVICE).unbind()
        name = f"{sequences}x{each} of {context}"
        print(f"{name:20} scores {microseconds([scoring]):9.1f}", end="")
        default = indexer.CHUNK, indexer._warps
        for chunk, warps in ((1024, 1), (1024, 2), (1024, 4), (2048, 4), (4096, 4), (4096, 8), (4096, 16)):
            indexer.CHUNK, indexer._warps = chunk, lambda _, warps=warps: warps
            selecting = partial(indexer._select, scores, view, listing, entries, places, 0, count)
            print(f"  {chunk}/{warps} {microseconds([selecting]):6.1f}", end="")
        indexer.CHUNK, indexer._warps = default
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
