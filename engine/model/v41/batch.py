"""The input of one forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .rows import BLOCK_TOKENS, Rows, plan_rows

NOT_TEXT = -1
"""In a token history: before the start of the sequence, or an image position."""


@dataclass(frozen=True)
class RetainedRows:
    """The rows that go on above the YOCO boundary in compact mode (model_spec 2.8)."""

    index: Tensor  # [retained] into the rows of the step
    rows: Rows


@dataclass(frozen=True)
class ImageRows:
    """Rows of image spans: START, IMAGE, NEWLINE and END positions alike."""

    mask: Tensor  # [rows] bool
    embeddings: Tensor  # [rows, dim], read where the mask is set


@dataclass(frozen=True)
class Batch:
    """Rows of many sequences and what each sequence brings. Tensors are int64 on the model's device.

    Padding rows belong to a sequence with state slot 0 and a block table of zeros, the scratch places.
    """

    token_ids: Tensor  # [rows]
    rows: Rows
    state_slot: Tensor  # [sequences]
    block_table: Tensor  # [sequences, blocks], covering every position of the step
    history: Tensor  # [sequences, ngram - 1] raw ids before the first row, oldest first; NOT_TEXT where none
    window_floor: Tensor  # [sequences] lowest window position any layer sees (replay, model_spec 5.5)
    consumer_floor: Tensor  # [sequences] the same for layers above the YOCO boundary (truncation)
    entry_floor: Tensor  # [sequences] positions below write no compressed entries
    logit_rows: Tensor | None = None  # [wanted] into the rows that reach the head; None means all
    scored_rows: Tensor | None = None  # [scored] rows whose hidden states are wanted, without logits
    retained: RetainedRows | None = None
    images: ImageRows | None = None


@dataclass(frozen=True)
class SequenceChunk:
    """The next tokens of one sequence, as the host knows them."""

    token_ids: Sequence[int]
    first_position: int
    state_slot: int
    block_table: Sequence[int]
    history: Sequence[int] = ()  # up to ngram - 1 ids before the chunk
    prompt_length: int | None = None  # whole length known at prefill time; None in decode
    window_floor: int = 0
    entry_floor: int = 0


@dataclass(frozen=True)
class Truncation:
    """Bounded replay: consumer layers see only the last `keep` positions of a prompt (model_spec 2.8)."""

    mode: str  # "mask" computes all rows, "compact" drops them at the boundary
    keep: int


def build_batch(
    chunks: Sequence[SequenceChunk],
    device: torch.device,
    *,
    ngram: int,
    truncation: Truncation | None = None,
    images: ImageRows | None = None,
) -> Batch:
    """A batch from host-side chunks; rows follow in the order of the chunks."""

    def tensor(values: Sequence[int] | Sequence[Sequence[int]]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    width = max(_blocks(chunk) for chunk in chunks)
    floors = [_consumer_floor(chunk, truncation) for chunk in chunks]
    compact = truncation is not None and truncation.mode == "compact"
    return Batch(
        token_ids=tensor([t for chunk in chunks for t in chunk.token_ids]),
        rows=plan_rows([c.first_position for c in chunks], [len(c.token_ids) for c in chunks], device),
        state_slot=tensor([c.state_slot for c in chunks]),
        block_table=tensor([_padded_table(c, width) for c in chunks]),
        history=tensor([_padded_history(c, ngram - 1) for c in chunks]),
        window_floor=tensor([c.window_floor for c in chunks]),
        consumer_floor=tensor(floors),
        entry_floor=tensor([c.entry_floor for c in chunks]),
        retained=_retained(chunks, floors, device) if compact and any(floors) else None,
        images=images,
    )


def _blocks(chunk: SequenceChunk) -> int:
    return -(-(chunk.first_position + len(chunk.token_ids)) // BLOCK_TOKENS)


def _padded_table(chunk: SequenceChunk, width: int) -> list[int]:
    """Blocks beyond the chunk are cut off: a narrow table is a short scan for the indexer."""
    table = list(chunk.block_table[:width])
    return table + [0] * (width - len(table))


def _padded_history(chunk: SequenceChunk, length: int) -> list[int]:
    known = list(chunk.history[-length:]) if length else []
    return [NOT_TEXT] * (length - len(known)) + known


def _consumer_floor(chunk: SequenceChunk, truncation: Truncation | None) -> int:
    if truncation is None or chunk.prompt_length is None:
        return chunk.window_floor
    return max(chunk.window_floor, chunk.prompt_length - truncation.keep, 0)


def _retained(chunks: Sequence[SequenceChunk], floors: Sequence[int], device: torch.device) -> RetainedRows:
    """Per chunk, rows from the floor on; a chunk wholly below it keeps its last row as a placeholder."""
    index: list[int] = []
    firsts: list[int] = []
    row = 0
    for chunk, floor in zip(chunks, floors, strict=True):
        count = len(chunk.token_ids)
        clip = min(max(floor - chunk.first_position, 0), count - 1)
        index.extend(range(row + clip, row + count))
        firsts.append(chunk.first_position + clip)
        row += count
    lengths = [c.first_position + len(c.token_ids) - f for c, f in zip(chunks, firsts, strict=True)]
    return RetainedRows(
        torch.tensor(index, dtype=torch.int64, device=device), plan_rows(firsts, lengths, device)
    )
