"""The numbers a schedule must respect, fixed when an engine opens."""

from __future__ import annotations

import msgspec


class SchedulingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and switches of the scheduler. Raises `ValueError` for limits that cannot be scheduled."""

    sequence_slots: int  # sequences that run at a time
    block_tokens: int
    table_columns: int  # blocks of the longest sequence, lookahead included
    max_positions: int  # exclusive bound of positions: max_context + 2K
    max_context: int
    max_rows: int  # token budget of a step
    prefill_chunk: int
    draft_tokens: int
    backtracking: int  # rows a step may write past a state that is still to be kept
    hit_margin: int  # prompt rows behind a prefix hit that must be computed
    max_bypass: int
    overlap: bool
    prefix_cache: bool
    replay_last: bool = False  # a sequence returns one token short, and draws its newest again by force
    verify: int | None = None  # drafts of a sequence that every step verifies; None: chosen step by step

    def __post_init__(self) -> None:
        checks = (
            (self.sequence_slots >= 1, "no sequence slot"),
            (self.prefill_chunk >= 1, "chunks of no row"),
            (self.hit_margin >= 1, "a prompt whose last row is not computed samples nothing"),
            (
                self.sequence_slots * self.width <= self.max_rows,
                f"{self.sequence_slots} sequences decode {self.sequence_slots * self.width} rows, "
                f"a step has {self.max_rows}",
            ),
            (
                self.max_positions >= self.max_context + 2 * self.width,
                f"{self.max_positions} positions are fewer than the context and two steps' lookahead",
            ),
            (
                self.table_columns * self.block_tokens >= self.max_positions,
                f"{self.table_columns} blocks do not cover {self.max_positions} positions",
            ),
            (
                self.draft_tokens == 0 or self.backtracking >= self.width or not self.prefix_cache,
                f"kept states survive {self.backtracking} rows, a step writes {self.width}",
            ),
        )
        for holds, reason in checks:
            if not holds:
                raise ValueError(f"these limits cannot be scheduled: {reason}")

    @property
    def width(self) -> int:
        """K: rows of a decode step of one sequence, the most tokens it may give."""
        return self.draft_tokens + 1

    @property
    def depth(self) -> int:
        """Most uncommitted steps while planning."""
        return 1 if self.overlap else 0

    def blocks(self, positions: int) -> int:
        """Blocks that cover so many positions."""
        return -(-positions // self.block_tokens)
