"""What the device knows of every sequence between steps: one row a slot (engine/README.md, "The one idea").

Sampling of step n writes these rows, the forward of step n+1 reads them; the stream orders the two. Slot 0 is
scratch. A new occupant's first chunk comes from the plan, so nothing here needs clearing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..runner import HISTORY, NO_TOKEN, RunnerShape


@dataclass(frozen=True)
class SlotState:
    """Positions and tokens, int64."""

    position: Tensor  # [slots], of the next row
    token: Tensor  # [slots], to be fed at `position`
    drafts: Tensor  # [slots, drafts], guessed to follow it
    confidence: Tensor  # [slots, drafts] wide, log-odds of acceptance: their sigmoid is the chance
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
