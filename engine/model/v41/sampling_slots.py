"""Sampling parameters of every slot, on the device, and the few that choose work, on the host too.

A filter or an edit that nobody in a step uses must cost that step nothing, and one that a single sequence
uses must cost only its rows. Asking the device who uses what would stall the stream, so the host keeps a
mirror: bits by slot that name the work, and the widths of lists. Tables of lists are as wide as the widest
list there ever was; where captured steps read them they are wide from the start (`widen`), since a captured
launch knows a table by its address.

Numbers of a slot lie in one matrix for each type, a table a row, so that newcomers without edits are one copy
to the device and four launches, not a dozen of each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepahead.devices.kernels.reference.sampling.tables import (
    ALLOWED,
    BIAS,
    EARLY_BAN,
    FILTER,
    PENALTY,
    PROCESSED,
    RANDOM,
    WORDS,
    SamplingTables,
)

from ...token_edits import LONGEST_WORD
from ..runner import NO_TOKEN, EditRows, RunnerShape, SamplingRows
from .host_arrays import to_device, together_to_device
from .seen_tokens import SeenTokens

__all__ = [
    "ALLOWED", "BIAS", "EARLY_BAN", "EDITS", "FILTER", "PENALTY", "PROCESSED", "RANDOM", "WORDS",
    "SamplingSlots",
]  # fmt: skip

EDITS = BIAS | ALLOWED | WORDS | PENALTY
_LONGS = ("top_k", "choice", "origin", "min_output", "most_drafts")
_FLOATS = ("temperature", "top_p", "min_p")
_PENALTIES = ("presence", "frequency", "repetition")
_LISTS = ("bias_ids", "allowed_ids", "word_ends")
_ALIGNED = 4
"""Numbers of a row are filled up to a multiple of it: every table then begins at 16 bytes."""
_WORDS = 256
"""Bad words of a slot that `widen` makes room for at first."""


class SamplingSlots:
    """Tables over slots. `work`, `top_k_host` and `logprobs` are the host's mirrors, the others tensors.

    `generation` counts how often a table had to move: whoever captured `tables()` captures again.
    """

    def __init__(self, shape: RunnerShape, vocab: int, device: torch.device) -> None:
        slots = shape.sequence_slots + 1
        self._device = device
        self.generation = 0

        def zeros(dtype: torch.dtype, *size: int) -> Tensor:
            return torch.zeros(slots, *size, dtype=dtype, device=device)

        def rows(count: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(count, -(-slots // _ALIGNED) * _ALIGNED, dtype=dtype, device=device)

        self._longs, self._floats = rows(1 + len(_LONGS), torch.int64), rows(len(_FLOATS), torch.float32)
        self._ints = rows(2 + len(_LISTS), torch.int32)
        self.seed, self.top_k, self.choice, self.origin, self.min_output, self.most_drafts = self._longs[
            :, :slots
        ].unbind()
        self.temperature, self.top_p, self.min_p = self._floats[:, :slots].unbind()
        self._work_bits, self._logprobs_wanted, *counts = self._ints[:, :slots].unbind()
        self._counts = dict(zip(_LISTS, counts, strict=True))
        self.top_p.fill_(1)
        self._logprobs_wanted.fill_(-1)
        self.end_ids = zeros(torch.int64, shape.max_stop_ids) + NO_TOKEN
        self.presence, self.frequency = zeros(torch.float32), zeros(torch.float32)
        self.repetition = zeros(torch.float32) + 1
        self.bias_ids, self.bias_values = zeros(torch.int64, 0), zeros(torch.float32, 0)
        self.allowed_ids = zeros(torch.int64, 0)
        self.word_beginnings, self.word_ends = zeros(torch.int64, 0, 0), zeros(torch.int64, 0)
        self.seen = SeenTokens(slots, min(shape.max_positions, vocab), vocab, device)
        self.work: npt.NDArray[np.int32] = np.zeros(slots, dtype=np.int32)
        self.forced: npt.NDArray[np.int32] = np.full(slots, NO_TOKEN, dtype=np.int32)
        self.top_k_host: npt.NDArray[np.int32] = np.zeros(slots, dtype=np.int32)
        self.logprobs: npt.NDArray[np.int32] = np.full(slots, -1, dtype=np.int32)

    def tables(self) -> SamplingTables:
        """What the fused operations read; valid while `generation` stays."""
        bias, allowed, words = (self._counts[name] for name in _LISTS)
        return SamplingTables(
            self._work_bits, self._logprobs_wanted, self.temperature, self.top_p, self.min_p, self.top_k,
            self.seed, self.choice, self.origin, self.min_output, self.presence, self.frequency,
            self.repetition, self.end_ids, self.bias_ids, self.bias_values, self.allowed_ids,
            self.word_beginnings, self.word_ends, bias, allowed, words, self.seen.recent, self.seen.counts,
        )  # fmt: skip

    def widen(self, listed: int) -> None:
        """Make room, while nobody is in, for lists of so many ids: their tables then stay where they are."""
        slots = self.work.size
        widths = {"bias_ids": 2 * listed, "bias_values": 2 * listed, "allowed_ids": listed}
        for name, width in {**widths, "word_ends": _WORDS}.items():
            table: Tensor = getattr(self, name)
            setattr(self, name, table.new_full((slots, width), NO_TOKEN))
        self.word_beginnings = self.word_beginnings.new_full((slots, _WORDS, LONGEST_WORD), NO_TOKEN)
        self.seen.keep_counts_only(LONGEST_WORD)

    def update(self, rows: SamplingRows, edits: EditRows | None) -> None:
        """Write the rows of new occupants."""
        if rows.slots.size == 0:
            return
        random = rows.temperature > 0
        filtered = random & ((rows.top_k > 0) | (rows.top_p < 1) | (rows.min_p > 0))
        work = RANDOM * random + FILTER * filtered + EARLY_BAN * (rows.min_output > 0)
        self.work[rows.slots] = work + PROCESSED * rows.processed
        self.forced[rows.slots] = rows.forced
        self.top_k_host[rows.slots] = rows.top_k
        self.logprobs[rows.slots] = rows.logprobs
        counts = np.zeros((len(_LISTS), self.work.size), dtype=np.int32)
        if edits is not None:
            counts[:, edits.slots] = self._edit(edits)
        index, longs, floats, ints, end_ids = together_to_device(
            (
                rows.slots.astype(np.int64),
                np.stack((rows.seed.view(np.int64), *(getattr(rows, name) for name in _LONGS))),
                np.stack([getattr(rows, name) for name in _FLOATS]),
                np.stack((self.work[rows.slots], rows.logprobs, *counts[:, rows.slots])),
                rows.end_ids.astype(np.int64),
            ),
            self._device,
        )
        self._longs.index_copy_(1, index, longs)
        self._floats.index_copy_(1, index, floats)
        self._ints.index_copy_(1, index, ints)
        self.end_ids.index_copy_(0, index, end_ids)

    def _edit(self, rows: EditRows) -> npt.NDArray[np.int32]:
        """Write what these rows list and note the work. Returns how long their lists are, `[lists, rows]`."""
        index = self._to(rows.slots, torch.int64)
        for name in _PENALTIES:
            getattr(self, name)[index] = self._to(getattr(rows, name), torch.float32)
        reach = max(rows.word_beginnings.shape[2], self.word_beginnings.shape[2])
        self.word_beginnings = self._listed(
            self.word_beginnings, index, _aligned(rows.word_beginnings, reach)
        )
        for name in ("bias_ids", "bias_values", "allowed_ids", "word_ends"):
            setattr(self, name, self._listed(getattr(self, name), index, getattr(rows, name)))
        self.seen.occupy(rows, index, reach)
        has = {
            BIAS: (rows.bias_ids >= 0).any(-1),
            ALLOWED: (rows.allowed_ids >= 0).any(-1),
            WORDS: (rows.word_ends >= 0).any(-1),
            PENALTY: (rows.seen_ids >= 0).any(-1),
        }
        self.work[rows.slots] += sum(bit * present.astype(np.int32) for bit, present in has.items())
        return np.stack([(getattr(rows, name) >= 0).sum(-1) for name in _LISTS]).astype(np.int32)

    def _listed(self, table: Tensor, index: Tensor, rows: npt.NDArray[np.generic]) -> Tensor:
        """The table with these rows, wider where they are; the rest of a row is pads."""
        size = [max(old, new) for old, new in zip(table.shape[1:], rows.shape[1:], strict=True)]
        if list(table.shape[1:]) != size:
            wider = table.new_full((table.shape[0], *size), NO_TOKEN)
            if table.dim() == 3:
                wider[:, : table.shape[1], size[1] - table.shape[2] :] = table
            else:
                wider[:, : table.shape[1]] = table
            table = wider
            self.generation += 1
        table.index_fill_(0, index, NO_TOKEN)
        table[index, : rows.shape[1]] = self._to(rows, table.dtype)
        return table

    def _to(self, array: npt.NDArray[np.generic], dtype: torch.dtype) -> Tensor:
        return to_device(array, self._device, dtype)


def _aligned(beginnings: npt.NDArray[np.int32], reach: int) -> npt.NDArray[np.int32]:
    """Wider in front."""
    missing = reach - beginnings.shape[2]
    return np.pad(beginnings, ((0, 0), (0, 0), (missing, 0)), constant_values=NO_TOKEN)
