"""What the device knows of every sequence between steps: one row a slot (engine/README.md, "The one idea").

Sampling of step n writes these rows, the forward of step n+1 reads them; the stream orders the two. Slot 0 is
scratch. A new occupant's first chunk comes from the plan, so nothing here needs clearing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..runner import HISTORY, NO_TOKEN, RunnerShape, SamplingRows


@dataclass(frozen=True)
class SlotState:
    """Positions and tokens, int64."""

    position: Tensor  # [slots], of the next row
    token: Tensor  # [slots], to be fed at `position`
    drafts: Tensor  # [slots, drafts], guessed to follow it
    confidence: Tensor  # [slots, drafts] wide, raw
    history: Tensor  # [slots, HISTORY] before `position`, oldest first
    table: Tensor  # [slots, columns], block ids


def allocate_slots(shape: RunnerShape, wide: torch.dtype, device: torch.device) -> SlotState:
    slots = shape.sequence_slots + 1

    def zeros(*size: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(*size, dtype=dtype, device=device)

    return SlotState(
        position=zeros(slots),
        token=zeros(slots),
        drafts=zeros(slots, shape.draft_tokens),
        confidence=zeros(slots, shape.draft_tokens, dtype=wide),
        history=zeros(slots, HISTORY) + NO_TOKEN,
        table=zeros(slots, shape.table_columns),
    )


class SamplingSlots:
    """Sampling parameters of every slot, on the device, and the few that choose work, on the host too.

    A filter nobody uses costs a sort of the vocabulary; the host mirror lets a step leave it out.
    """

    def __init__(self, shape: RunnerShape, device: torch.device) -> None:
        slots = shape.sequence_slots + 1
        self._device = device
        self.temperature = torch.zeros(slots, dtype=torch.float32, device=device)
        self.top_k = torch.zeros(slots, dtype=torch.int64, device=device)
        self.top_p = torch.ones(slots, dtype=torch.float32, device=device)
        self.seed = torch.zeros(slots, dtype=torch.int64, device=device)
        self.choice = torch.zeros(slots, dtype=torch.int64, device=device)
        self.origin = torch.zeros(slots, dtype=torch.int64, device=device)
        self.min_output = torch.zeros(slots, dtype=torch.int64, device=device)
        self.end_ids = torch.full((slots, shape.max_stop_ids), NO_TOKEN, dtype=torch.int64, device=device)
        self._filters = np.zeros(slots, dtype=bool)
        self._bans = np.zeros(slots, dtype=bool)

    def update(self, rows: SamplingRows) -> None:
        """Write the rows of new occupants."""
        if rows.slots.size == 0:
            return
        index = torch.from_numpy(rows.slots).to(self._device, torch.int64)
        for name in ("temperature", "top_k", "top_p", "choice", "origin", "min_output", "end_ids"):
            table: Tensor = getattr(self, name)
            table[index] = torch.from_numpy(getattr(rows, name)).to(self._device, table.dtype)
        self.seed[index] = torch.from_numpy(rows.seed.view(np.int64)).to(self._device)
        self._filters[rows.slots] = (rows.temperature > 0) & ((rows.top_k > 0) | (rows.top_p < 1))
        self._bans[rows.slots] = rows.min_output > 0

    def any_filter(self, slots: np.ndarray) -> bool:
        return bool(self._filters[slots].any())

    def any_ban(self, slots: np.ndarray) -> bool:
        return bool(self._bans[slots].any())
