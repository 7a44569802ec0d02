"""What decode rows will need within their next few steps, asked for with what they need now.

With many sequences somebody crosses a block boundary in every step. Were each block and each state slot asked
for when a step needs it, every plan would wait for the cache manager, and the device for the plan. So a plan
that must ask asks for everybody within a quarter of a block of a boundary, and the next plans find what they
need. Few sequences cross seldom: they ask when they need it, as does everybody who was refused.

Rejected: a message of its own, sent behind a plan for the next one. Its answer would meet sequences that have
ended or were preempted meanwhile, and would need a second way back for what it brings.

Invariant: what is asked ahead costs nobody a preemption, and a sequence that leaves gives it back.
"""

from __future__ import annotations

from stepahead.engine.cache.reservation import EMPTY
from stepahead.engine.model.runner import Int32s

from .ledger import Ledger
from .rows import StepRows
from .window_saves import WindowSaves

FEW = 32
"""Decoding sequences up to which nobody asks ahead."""


def near_boundaries(
    ledger: Ledger, saves: WindowSaves, rows: StepRows, due: list[int]
) -> tuple[Int32s, list[int]]:
    """Slots that will need a block more, and slots that will need a state slot; none that need one now."""
    limits = ledger.limits
    near, block = limits.block_tokens // 4, limits.block_tokens
    if rows.members.count <= FEW or near + limits.width > block:
        return EMPTY, []
    at, ahead = rows.decode_rows, rows.decode_first + near
    held = ledger.block_count[at]
    grows = (ahead + limits.width > held * block) & (held < limits.table_columns)
    grows[rows.short] = False
    keeps = rows.decode.slots[(ahead >= saves.next_position[at]).nonzero()[0]].tolist()
    return rows.decode.slots[grows], [slot for slot in saves.unprovided(keeps) if slot not in due]
