"""The indexer on the card: scores and the exact selection; see check_kernels.py.

The error is the share of rows whose choice differs from the twin's on keys and queries whose scores are exact
(small integers), so it must be 0. Keys are counted as read once a sequence.
"""

from __future__ import annotations

from functools import partial

import torch
from measuring import DEVICE, Row, measured
from torch import Tensor

from stepahead.devices.kernels.reference import indexer as reference
from stepahead.devices.kernels.reference.indexer import Candidates, ChosenEntries, EntryView, IndexQuery
from stepahead.devices.kernels.reference.rows import lay_rows, uniform_tiles
from stepahead.devices.kernels.triton import indexer

COLUMNS_SPARE = 2


def integers(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(-1, 2, shape, device=DEVICE, dtype=torch.int8).to(dtype)


def problem(
    sequences: int,
    each: int,
    context: int,
    heads: int,
    dim: int,
    dtype: torch.dtype,
    per_block: int,
    columns: int,
) -> tuple[IndexQuery, Tensor, EntryView]:
    """`each` last rows of sequences of about `context` positions; pages in random order, shared by sequences
    beyond what 2 GiB of keys hold."""
    first = (
        torch.full((sequences,), context - each, device=DEVICE) - torch.arange(sequences, device=DEVICE) % 7
    )
    lengths = torch.full_like(first, each)
    rows = lay_rows(first, lengths, sequences * each, uniform_tiles(sequences, each, DEVICE))
    pages = min(sequences * columns, (1 << 31) // (per_block * dim * dtype.itemsize)) + 1
    table = (torch.randperm(sequences * columns, device=DEVICE) % (pages - 1) + 1).view(sequences, columns)
    view = EntryView(rows, table, (rows.position + 1) * per_block // 128, per_block)
    count = sequences * each
    turns = torch.zeros(count, dim // 2, device=DEVICE)
    turns[:, ::2] = 1
    query = IndexQuery(
        integers(count, heads, dim, dtype=dtype), turns, integers(count, heads, dtype=dtype), 0.25,
        "fp4_ue8m0" if dtype == torch.bfloat16 else "plain", dtype == torch.bfloat16,
    )  # fmt: skip
    return query, integers(pages, per_block, dim, dtype=dtype), view


def differing(ours: ChosenEntries, theirs: ChosenEntries) -> float:
    wrong = (ours.entries != theirs.entries).any(1) | (ours.places != theirs.places).any(1)
    if ours.candidate_blocks is not None and theirs.candidate_blocks is not None:
        wrong |= (ours.candidate_blocks != theirs.candidate_blocks).any(1)
    return float(wrong.float().mean())


def choose_row(
    name: str, sequences: int, each: int, context: int, columns: int, small: bool, *, real: bool = True,
    candidates: Candidates | None = None,
) -> Row:  # fmt: skip
    heads, dim, count, dtype = (32, 128, 512, torch.bfloat16) if real else (4, 32, 64, torch.float32)
    query, keys, view = problem(sequences, each, context, heads, dim, dtype, 128 if real else 64, columns)
    choice = candidates if candidates is not None else Candidates(8, 2048, None, False)
    run = partial(indexer.choose_entries, query, keys, view, count, choice)

    def twin() -> ChosenEntries:
        asked = query._replace(query_rows_heads_dim=query.query_rows_heads_dim.clone())
        return reference.choose_entries(asked, keys, view, count, choice)

    affordable = sequences * each * heads * view.available <= 1 << 30
    error = differing(run(), twin()) if affordable else 0.0
    read = sequences * float(view.visible[0]) * dim * dtype.itemsize
    listed = choice.chosen is not None
    if listed:
        read = sequences * each * min(float(view.visible[0]), 16384.0) * dim * dtype.itemsize
    return measured(
        name,
        f"{sequences}x{each} of {context}/{columns * 128}",
        error,
        0.0,
        [run],
        dtype=dtype,
        moved_bytes=read,
        flops=2.0 * sequences * each * heads * dim * float(view.visible[0]),
        twin=twin if affordable and sequences * each <= 64 else None,
        small=small,
    )


def run(small: bool) -> list[Row]:
    torch.manual_seed(0)
    if small:
        return [
            choose_row("choose", 3, 1, 300, 4, small, real=False),
            choose_row("choose", 2, 5, 700, 6, small),
        ]
    rows = [
        choose_row("choose built-in", 64, 1, 600, 8, small, real=False),
        choose_row("choose built-in", 64, 6, 600, 8, small, real=False),
    ]
    for sequences, context in ((1, 1024), (64, 1024), (1, 16384), (64, 16384), (1, 131072), (64, 131072)):
        columns = context // 128 + COLUMNS_SPARE
        rows.append(choose_row("choose", sequences, 1, context, columns, small))
    rows.append(choose_row("choose", 64, 1, 1024, 1024, small))  # cost follows the context, not the table
    rows.append(choose_row("choose", 16, 6, 16384, 130, small))
    rows.append(choose_row("choose prefill", 1, 1024, 16384, 128, small))
    rows.append(
        choose_row("choose, publish", 8, 1, 131072, 1024, small, candidates=Candidates(8, 2048, None, True))
    )
    chosen = torch.arange(0, 16384, 8, device=DEVICE, dtype=torch.int32).expand(64, 2048).contiguous()
    rows.append(
        choose_row(
            "choose, listed", 64, 1, 131072, 1024, small, candidates=Candidates(8, 2048, chosen, False)
        )
    )
    return rows
