"""A step's result on its way to the host: one matrix of 32-bit columns, one copy, nobody waits.

A result is half a dozen small tensors. Fetching each costs a wait for the whole stream on a GPU, so they are
joined into rows of int32, one row a sequence (floats by their bits), which leave in one copy behind the
sampling; the mark behind that copy is what the ticket waits for. The same matrix serves a CPU, where the copy
is free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..runner import StepResult
from .choosing import Drawn


@dataclass(frozen=True)
class ResultColumns:
    """What stands in a row, in this order."""

    reach: int  # K: columns of tokens
    confidences: int  # D, or 0 where none are reported
    alternatives: int  # of each token; -1: no log-probabilities

    @property
    def width(self) -> int:
        told = 1 + 2 * self.alternatives if self.alternatives >= 0 else 0
        return self.reach * (1 + told) + 4 + self.confidences

    def pack(self, drawn: Drawn, drafted: Tensor, first: Tensor, odds: Tensor | None) -> Tensor:
        """int32 `[sequences, width]`. `odds` `[sequences, D]`: log-odds of the drafts in the slots."""
        whole = (
            drawn.tokens,
            drawn.emitted[:, None],
            drafted[:, None],
            first[:, None],
            drawn.finite[:, None],
        )
        columns = [column.to(torch.int32) for column in whole]
        if odds is not None:
            columns.append(_bits(odds.sigmoid()))
        if drawn.logprobs is not None and drawn.top_logprobs is not None and drawn.top_tokens is not None:
            columns += [_bits(drawn.logprobs), _bits(drawn.top_logprobs.flatten(1))]
            columns.append(drawn.top_tokens.flatten(1).to(torch.int32))
        return torch.cat(columns, dim=1)

    def unpack(self, step: int, rows: npt.NDArray[np.int32]) -> StepResult:
        """The result in rows `[sequences, width]`; its arrays are copies."""
        columns = _Columns(rows)
        reach, more = self.reach, self.alternatives
        tokens = columns.take(reach)
        emitted, drafted, first, finite = columns.take_each(4)
        confidences = columns.take(self.confidences).view(np.float32) if self.confidences else None
        logprobs = top = ids = None
        if more >= 0:
            logprobs = columns.take(reach).view(np.float32)
            top = columns.take(reach * more).view(np.float32).reshape(len(rows), reach, more)
            ids = columns.take(reach * more).reshape(len(rows), reach, more)
        return StepResult(
            step=step,
            tokens=tokens,
            emitted=emitted,
            drafted=drafted,
            positions=first,
            finite=finite != 0,
            logprobs=logprobs,
            top_logprobs=top,
            top_tokens=ids,
            confidences=confidences,
        )


class _Columns:
    """Copies of columns, from the left."""

    def __init__(self, rows: npt.NDArray[np.int32]) -> None:
        self._rows, self._place = rows, 0

    def take(self, width: int) -> npt.NDArray[np.int32]:
        start, self._place = self._place, self._place + width
        return self._rows[:, start : self._place].copy()

    def take_each(self, count: int) -> npt.NDArray[np.int32]:
        """So many columns as the rows of an array."""
        start, self._place = self._place, self._place + count
        return self._rows[:, start : self._place].T.copy()


def _bits(values: Tensor) -> Tensor:
    return values.to(torch.float32).contiguous().view(torch.int32)
