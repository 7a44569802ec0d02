"""Which prompt rows of a step shall report how likely the prompt's next token was.

Only requests that ask have such rows, and only those no earlier admission has reported: after a preemption a
prompt's rest is computed again, and its rows that were committed before need not go through the head twice.
The row behind a prompt's last token is the first output's and is not among them.

Invariant: rows below `Sequence.scored` are committed with their report, so a prefix hit of a sequence that
asked may cover those and no others.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from stepahead.engine.model.runner import BatchLayout, ScoredRows

from .chunks import PromptRows
from .ledger import Ledger


def scored_rows(ledger: Ledger, layout: BatchLayout, prompts: Items[PromptRows]) -> ScoredRows | None:
    """Of the prompts at the end of `layout`; None if nobody asked."""
    chunks: list[tuple[int, int, int]] = []  # index in the layout, first row's and last row's end position
    for number, chunk in enumerate(prompts):
        first = max(chunk.start, int(ledger.scored_from[chunk.slot]))
        end = min(chunk.end, int(ledger.scored_until[chunk.slot]))
        if first < end:
            chunks.append((number, first, end))
    if not chunks:
        return None
    rows, tokens, alternatives = [], [], 0
    for number, first, end in chunks:
        chunk = prompts[number]
        start = int(layout.row_starts[layout.decode_count + number]) + first - chunk.start
        rows.append(np.arange(start, start + end - first, dtype=np.int32))
        tokens.append(ledger.tokens[chunk.slot, first + 1 : end + 1])
        alternatives = max(alternatives, int(ledger.scored_alternatives[chunk.slot]))
    return ScoredRows(
        sequences=np.array([layout.decode_count + number for number, _, _ in chunks], dtype=np.int32),
        first=np.array([first for _, first, _ in chunks], dtype=np.int32),
        counts=np.array([end - first for _, first, end in chunks], dtype=np.int32),
        rows=np.concatenate(rows),
        tokens=np.concatenate(tokens),
        alternatives=alternatives,
    )
