"""Launching the sampling of a step: no value of a tensor is read here, so all of it can be captured.

Which kernels run follows from the vocabulary alone. What a launch needs of sizes travels in the named tuples
beside the tensors; the numbers that change from step to step are kept from Triton's specialisation, which
would compile a kernel anew for one prompt, for sixteen, and for other numbers of them.
"""

from __future__ import annotations

import math
from collections import namedtuple
from functools import partial
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..reference.sampling.tables import NO_TOKEN, DrawnTokens, SampledSequences, SamplingTables
from .sampling_rows import draw_whole_rows
from .sampling_split import LEVELS, collect_candidates, finish_rows, rank_groups, scan_tiles, weigh_levels

WHOLE = 8192
"""Vocabularies up to here are a row a program."""
_SCRATCH = 1 << 27
"""Edited logits that exist at a time; more rows are drawn one part after another."""


class _Sequences(NamedTuple):
    slots: Tensor
    first: Tensor
    lengths: Tensor


_WIDTHS = ("bias_width", "allowed_width", "words_width", "reach", "ends_width")
_make: Any = namedtuple
_Tables: Any = _make("_Tables", (*SamplingTables._fields, *_WIDTHS))
"""The tables and how wide their lists are."""


class Split(NamedTuple):
    """How a row is taken apart."""

    tile: int  # tokens a program scans
    group: int  # tokens whose maximum may become a level
    room: int  # candidates that are listed
    few: int  # candidates that stay in registers while a row is decided
    many: int  # of more candidates, those read at a time


SPLIT = Split(tile=4096, group=512, room=16384, few=1024, many=4096)


class _Parts(NamedTuple):
    """Of every tile `[rows, tiles]`."""

    peak: Tensor
    token: Tensor
    score: Tensor
    candidate: Tensor


class _RowState(NamedTuple):
    """Of every row and job."""

    peak: Tensor  # [rows, 2]
    number: Tensor  # [rows, 2] int32, candidates
    levels: Tensor  # [rows, 2, levels]
    work: Tensor  # [rows, 4] int64: bits of jobs, slot, row of the logits, position of the token to draw


class _Weights(NamedTuple):
    """Of every row, job and tile."""

    total: Tensor  # [rows, 2, tiles] int64
    number: Tensor  # [rows, 2, tiles, levels] int32, tokens above
    mass: Tensor  # [rows, 2, tiles, levels] float32


class Shared(NamedTuple):
    """What every sampling kernel takes, in this order."""

    sequences: _Sequences
    decodes: int
    first_prompt_row: int
    first_sequence: int
    first_place: int
    drafts: Tensor
    tables: Any
    bits: Tensor
    scratch: Tensor


def draw_tokens(
    logits_rows_vocab: Tensor,
    sequences: SampledSequences,
    drafts_slots_places: Tensor,
    tables: SamplingTables,
    *,
    alternatives: int = -1,
    allowed_bits: Tensor | None = None,
) -> DrawnTokens:
    """The twin's `draw_tokens`; logits float32 and contiguous."""
    places = drafts_slots_places.shape[1] + 1
    drawn = _room(logits_rows_vocab, (sequences.slots.shape[0], places), alternatives)
    draw_into(drawn, logits_rows_vocab, sequences, drafts_slots_places, tables, allowed_bits)
    return drawn


def draw_into(
    drawn: DrawnTokens,
    logits: Tensor,
    sequences: SampledSequences,
    drafts: Tensor,
    tables: SamplingTables,
    allowed_bits: Tensor | None = None,
    first_place: int = 0,
) -> None:
    """Draw at the places of `drawn`, the first of which has `first_place` drafts before it."""
    count, places = drawn.tokens.shape
    piece = max(_SCRATCH // (places * logits.shape[1]), 1)
    for first in range(0, count, piece):
        part = _part(drawn, first, piece)
        _draw_piece(part, logits, sequences, drafts, tables, allowed_bits, first, first_place)


def _part(drawn: DrawnTokens, first: int, count: int) -> DrawnTokens:
    end = first + count
    tokens, finite = drawn.tokens[first:end], drawn.finite[first:end]
    return DrawnTokens(
        tokens, finite, *(None if report is None else report[first:end] for report in drawn[2:])
    )


def _draw_piece(
    drawn: DrawnTokens,
    logits: Tensor,
    sequences: SampledSequences,
    drafts: Tensor,
    tables: SamplingTables,
    allowed_bits: Tensor | None,
    first_sequence: int,
    first_place: int,
) -> None:
    """Of the sequences from `first_sequence` on, as many as `drawn` has room for."""
    count, places = drawn.tokens.shape
    rows, vocab = logits.shape
    shared = Shared(
        _Sequences(sequences.slots, sequences.first, sequences.lengths),
        sequences.decodes,
        rows - sequences.slots.shape[0],
        first_sequence,
        first_place,
        drafts,
        with_widths(tables),
        logits if allowed_bits is None else allowed_bits,
        logits.new_empty(count * places, vocab),
    )
    written = _pointers(drawn, logits)
    sizes = {
        "VOCAB": vocab,
        "PLACES": places,
        "ALTERNATIVES": -1 if drawn.top_logprobs is None else drawn.top_logprobs.shape[2],
    }
    edits = {
        "DRAFTS": drafts.shape[1],
        "HAS_BITS": allowed_bits is not None,
        **list_tiles(tables),
    }
    if vocab > WHOLE:
        _draw_split(logits, shared, written, sizes, edits, SPLIT)
        return
    draw_whole_rows[(count * places,)](
        logits,
        *shared,
        written,
        **sizes,
        **edits,
        SCALE=mass_scale(vocab),
        BLOCK=triton.next_power_of_2(vocab),
        num_warps=8,
    )


def _draw_split(
    logits: Tensor,
    shared: Shared,
    drawn: DrawnTokens,
    sizes: dict[str, int],
    edits: dict[str, Any],
    split: Split,
) -> None:
    """Six launches over tiles of the vocabulary."""
    vocab = sizes["VOCAB"]
    count, tiles = drawn.tokens.numel(), triton.cdiv(vocab, split.tile)
    used = tiles * (split.tile // split.group)
    lanes, shape = triton.next_power_of_2(used), (count, tiles)
    integers = partial(torch.empty, dtype=torch.int32, device=logits.device)
    parts = _Parts(logits.new_empty(shape), integers(shape), logits.new_empty(shape), integers(shape))
    groups = logits.new_empty(count, 2, lanes)
    rows = _RowState(
        logits.new_empty(count, 2),
        integers(count, 2),
        logits.new_empty(count, 2, LEVELS),
        drawn.tokens.new_empty(count, 4),
    )
    cells = (count, 2, tiles)
    weights = _Weights(
        drawn.tokens.new_empty(cells), integers(*cells, LEVELS), logits.new_empty(*cells, LEVELS)
    )
    listed = integers(count, 2, split.room)
    where = shared[:5]
    jobs = 1 if sizes["ALTERNATIVES"] < 0 else 2
    cuts = {"TILES": tiles, "TILE_LANES": triton.next_power_of_2(tiles)}
    scale, tables, scratch = mass_scale(vocab), shared.tables, shared.scratch
    scan_tiles[(count, tiles)](
        logits, *shared, parts, groups, **sizes, **edits, GROUP=split.group, GROUPS=lanes, BLOCK=split.tile,
        num_warps=8,
    )  # fmt: skip
    rank_groups[(count,)](
        *where, tables, parts, groups, torch.empty_like(groups), rows, drawn, **sizes, **cuts, USED=used,
        GROUPS=lanes, STEP=math.log2(used) / (LEVELS - 1), num_warps=8,
    )  # fmt: skip
    weigh_levels[(count, tiles, jobs)](
        logits, scratch, rows, weights, VOCAB=vocab, SCALE=scale, BLOCK=split.tile, num_warps=8
    )
    cuts |= {"VOCAB": vocab, "ALTERNATIVES": sizes["ALTERNATIVES"], "SCALE": scale, "ROOM": split.room}
    collect_candidates[(count, tiles, jobs)](
        logits, tables, scratch, rows, weights, listed, **cuts, BLOCK=split.tile, num_warps=8
    )
    for many, block, warps in ((False, split.few, 4), (True, split.many, 16)):
        finish_rows[(count,)](
            logits, tables, scratch, rows, weights, drawn, listed, **cuts, FEW=split.few, MANY=many,
            BLOCK=block, num_warps=warps,
        )  # fmt: skip


def list_tiles(tables: SamplingTables) -> dict[str, int]:
    """A row's allowed ids are taken in one piece, and so is the beginning of a bad word."""
    widths = {"ALLOWED_TILE": tables.allowed_ids.shape[1], "REACH": tables.recent.shape[1]}
    return {name: 1 << (max(width, 16) - 1).bit_length() for name, width in widths.items()}


def mass_scale(vocab: int) -> int:
    """Masses are integers of 2^-scale of the likeliest token's; a whole row of such fits 62 bits."""
    return 62 - (vocab - 1).bit_length()


def with_widths(tables: SamplingTables) -> Any:
    words, reach = tables.word_beginnings.shape[1:]
    widths = (tables.bias_ids.shape[1], tables.allowed_ids.shape[1], words, reach, tables.end_ids.shape[1])
    return _Tables(*tables, *widths)


def _room(like: Tensor, shape: tuple[int, int], alternatives: int) -> DrawnTokens:
    tokens = torch.empty(shape, dtype=torch.int64, device=like.device)
    finite = torch.empty(shape, dtype=torch.bool, device=like.device)
    if alternatives < 0:
        return DrawnTokens(tokens, finite, None, None, None)
    top = like.new_zeros(*shape, alternatives)
    ids = torch.full_like(top, NO_TOKEN, dtype=torch.int64)
    return DrawnTokens(tokens, finite, like.new_zeros(shape), top, ids)


def _pointers(drawn: DrawnTokens, unused: Tensor) -> DrawnTokens:
    """Without the None: what nobody reports is never written."""
    return DrawnTokens(*(unused if tensor is None else tensor for tensor in drawn))
