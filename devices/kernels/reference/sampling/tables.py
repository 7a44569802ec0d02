"""What the fused sampling operations read: who samples, and every parameter as a table over slots.

A captured step runs the same launches whoever is in the batch, so nothing on the host may choose rows: which
work a row needs is a bit in a table on the device, and where a sequence's rows begin is a sum of lengths.
Named tuples rather than classes, because a kernel takes them as they are.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

NO_TOKEN = -1
RANDOM, FILTER, EARLY_BAN, BIAS, ALLOWED, WORDS, PENALTY, PROCESSED = (1 << bit for bit in range(8))
"""Bits of `SamplingTables.work`: what the rows of a slot need."""


class SamplingTables(NamedTuple):
    """Parameters by slot; lists are padded with NO_TOKEN behind their `..._count` entries."""

    work: Tensor  # [slots] int32
    logprobs: Tensor  # [slots] int32, -1: not asked for
    temperature: Tensor  # [slots] float32, as the next two
    top_p: Tensor
    min_p: Tensor
    top_k: Tensor  # [slots] int64, as the next four
    seed: Tensor
    choice: Tensor
    origin: Tensor  # length of the caller's prompt
    min_output: Tensor
    presence: Tensor  # [slots] float32, as the next two
    frequency: Tensor
    repetition: Tensor
    end_ids: Tensor  # [slots, ends] int64
    bias_ids: Tensor  # [slots, biases] int64
    bias_values: Tensor  # [slots, biases] float32
    allowed_ids: Tensor  # [slots, allowed] int64
    word_beginnings: Tensor  # [slots, words, reach] int64, aligned at the end
    word_ends: Tensor  # [slots, words] int64
    bias_count: Tensor  # [slots] int32, as the next two
    allowed_count: Tensor
    word_count: Tensor
    recent: Tensor  # [slots, reach] int64, last output tokens, newest last
    seen: (
        Tensor  # [slots, vocab] int32, 2 * (times in the output) + (1 if in the prompt); [1, 1]: nobody asks
    )


class SampledSequences(NamedTuple):
    """The sequences that draw, decodes first. Rows of the logits: all rows of decodes, then one a prompt."""

    slots: Tensor  # [sequences] int64
    first: Tensor  # [sequences] int64, position of the first row
    lengths: Tensor  # [sequences] int64, rows; of a decode that many draws, of a prompt one
    decodes: int


class SlotTensors(NamedTuple):
    """What the device knows of every sequence between steps, int64."""

    position: Tensor  # [slots], of the next row
    token: Tensor  # [slots], to be fed there
    drafts: Tensor  # [slots, drafts], guessed to follow
    history: Tensor  # [slots, kept] before `position`, oldest first


class DrawnTokens(NamedTuple):
    """One draw at every place of every sequence; places beyond its rows hold NO_TOKEN, 0, and are finite."""

    tokens: Tensor  # [sequences, places] int64
    finite: Tensor  # [sequences, places] bool: the edited row is a distribution
    logprobs: Tensor | None  # [sequences, places] float32
    top_logprobs: Tensor | None  # [sequences, places, alternatives]
    top_tokens: Tensor | None  # [sequences, places, alternatives] int64


class SettledTokens(NamedTuple):
    """What a step gave: accepted drafts, then one token; NO_TOKEN and logprobs of 0 behind."""

    tokens: Tensor  # [sequences, places] int64
    emitted: Tensor  # [sequences] int64
    finite: Tensor  # [sequences] bool, of the emitted places
    logprobs: Tensor | None
    top_logprobs: Tensor | None
    top_tokens: Tensor | None


class DraftInputs(NamedTuple):
    """One pass of the draft block, before any token is chosen."""

    base_logits: Tensor  # [sequences, block, vocab] float32
    hidden: Tensor  # [sequences, block, dim]
    markov_embed: Tensor  # [vocab, rank]
    markov_head: Tensor  # [vocab, rank]
    confidence: Tensor  # [1, dim + rank]
    temperatures: tuple[float, ...]  # of the confidences by place; empty: 1
    markov_table: Tensor | None  # [vocab, vocab] float32, row `previous`: what it adds to the logits
    peak_scales: tuple[float, ...] = ()  # by place, of the peak's log-odds; empty: the head decides
    peak_offsets: tuple[float, ...] = ()
