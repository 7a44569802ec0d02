"""Launching the sampling of a step: no value of a tensor is read here, so all of it can be captured.

Which kernels run follows from the vocabulary alone. What a launch needs of sizes travels in the named tuples
beside the tensors; the numbers that change from step to step are kept from Triton's specialisation, which
would compile a kernel anew for one prompt, for sixteen, and for other numbers of them.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ..reference.sampling.tables import NO_TOKEN, DrawnTokens, SampledSequences, SamplingTables
from .sampling_rows import draw_whole_rows

WHOLE = 8192
"""Vocabularies up to here are a row a program."""


class _Sequences(NamedTuple):
    slots: Tensor
    first: Tensor
    lengths: Tensor


_WIDTHS = ("bias_width", "allowed_width", "words_width", "reach", "ends_width")
_make: Any = namedtuple
_Tables: Any = _make("_Tables", (*SamplingTables._fields, *_WIDTHS))
"""The tables and how wide their lists are."""


class Shared(NamedTuple):
    """What every sampling kernel takes, in this order."""

    sequences: _Sequences
    decodes: int
    first_prompt_row: int
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
    rows, vocab = logits.shape
    if count == 0:
        return
    shared = Shared(
        _Sequences(sequences.slots, sequences.first, sequences.lengths),
        sequences.decodes,
        rows - count,
        first_place,
        drafts,
        with_widths(tables),
        logits if allowed_bits is None else allowed_bits,
        logits.new_empty(count * places, vocab),
    )
    alternatives = -1 if drawn.top_logprobs is None else drawn.top_logprobs.shape[2]
    draw_whole_rows[(count * places,)](
        logits,
        *shared,
        _pointers(drawn, logits),
        VOCAB=vocab,
        PLACES=places,
        DRAFTS=drafts.shape[1],
        HAS_BITS=allowed_bits is not None,
        ALTERNATIVES=alternatives,
        SCALE=mass_scale(vocab),
        ALLOWED_TILE=allowed_tile(tables),
        BLOCK=triton.next_power_of_2(vocab),
        num_warps=8,
    )


def allowed_tile(tables: SamplingTables) -> int:
    """A row's allowed ids are taken in one piece."""
    return 1 << (max(tables.allowed_ids.shape[1], 16) - 1).bit_length()


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
