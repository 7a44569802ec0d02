"""Log-probabilities as callers see them, and those of a prompt while they are being gathered.

An answer's logprobs come a few at a time and become tuples. A prompt's come by the hundred thousand: as many
objects would stop the event loop for seconds, and most callers want a sum or an array. So they stay arrays,
behind a sequence that makes an entry when it is read. Rejected: a tuple, made on the loop for every caller.

Invariant: a probability of zero, or of a row without a finite logit, reads as `LOGPROB_FLOOR`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import msgspec
import numpy as np
import numpy.typing as npt

LOGPROB_FLOOR = -9999.0
"""Reported for a probability of zero: an infinity has no JSON form."""

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log probability of one token and, if asked for, of the best alternatives at its position."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, logprob), best first


def floored(values: Floats) -> Floats:
    """float32, the same shape, everything finite and at least the floor."""
    known = np.nan_to_num(values, nan=LOGPROB_FLOOR, neginf=LOGPROB_FLOOR)
    bounded: Floats = np.maximum(known, np.float32(LOGPROB_FLOOR))
    return bounded


class PromptLogprobs(Sequence[TokenLogprob]):
    """One entry for every token of a prompt after its first, in order: entry i is of prompt token i + 1.

    The arrays are read-only: `token_ids` int32 [n], `logprobs` float32 [n], `top_ids` and `top_logprobs`
    [n, alternatives], best first.
    """

    __slots__ = ("logprobs", "token_ids", "top_ids", "top_logprobs")

    def __init__(self, token_ids: Ids, logprobs: Floats, top_ids: Ids, top_logprobs: Floats) -> None:
        self.token_ids, self.logprobs = token_ids, logprobs
        self.top_ids, self.top_logprobs = top_ids, top_logprobs
        for array in (token_ids, logprobs, top_ids, top_logprobs):
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.token_ids)

    @overload
    def __getitem__(self, index: int) -> TokenLogprob: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[TokenLogprob, ...]: ...
    def __getitem__(self, index: int | slice) -> TokenLogprob | tuple[TokenLogprob, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        top = zip(self.top_ids[index].tolist(), self.top_logprobs[index].tolist(), strict=True)
        return TokenLogprob(int(self.token_ids[index]), float(self.logprobs[index]), tuple(top))

    def __repr__(self) -> str:
        return f"PromptLogprobs({len(self)} tokens, {self.top_ids.shape[1]} alternatives each)"


class GatheredScores:
    """What is known so far of a prompt's log-probabilities; parts may come twice, and in any order."""

    __slots__ = ("_known", "_logprobs", "_missing", "_token_ids", "_top_ids", "_top_logprobs")

    def __init__(self, prompt: Ids, alternatives: int) -> None:
        count = len(prompt) - 1
        self._token_ids = prompt[1:]
        self._logprobs: Floats = np.empty(count, dtype=np.float32)
        self._top_logprobs: Floats = np.empty((count, alternatives), dtype=np.float32)
        self._top_ids: Ids = np.empty((count, alternatives), dtype=np.int32)
        self._known = np.zeros(count, dtype=np.bool_)
        self._missing = count

    def add(self, first: int, logprobs: Floats, top_logprobs: Floats, top_ids: Ids) -> None:
        """Rows `first` and on: row r is of prompt token r + 1. Alternatives beyond those asked are cut."""
        rows, alternatives = slice(first, first + len(logprobs)), self._top_ids.shape[1]
        self._logprobs[rows] = floored(logprobs)
        self._top_logprobs[rows] = floored(top_logprobs[:, :alternatives])
        self._top_ids[rows] = top_ids[:, :alternatives]
        self._missing -= len(logprobs) - int(self._known[rows].sum())
        self._known[rows] = True

    @property
    def complete(self) -> bool:
        return self._missing == 0

    def result(self) -> PromptLogprobs:
        """Once complete; the arrays are the result's from now on."""
        return PromptLogprobs(self._token_ids.copy(), self._logprobs, self._top_ids, self._top_logprobs)
