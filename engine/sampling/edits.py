"""Newcomers' edits of single tokens as rows for the device: biases, allowed ids, bad words, tokens seen.

Penalties look at every token before the one being drawn, and the device cannot know them: most of a prompt
may come from the prefix cache, and a preempted sequence returns with output. So a newcomer brings the tokens
it has seen, once each with a count, and from there the device counts itself, token by accepted token.
Rejected: sending counts with each step, which the host knows only a step too late.

Invariant: without a newcomer that edits anything there is no work here at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stepahead.engine.model.runner import NO_TOKEN, EditRows, Float32s, Int32s
from stepahead.engine.types import Occupant, TokenEdits


def edit_rows(occupants: Sequence[Occupant]) -> EditRows | None:
    """Rows of the occupants that have edits, None if nobody has."""
    if not occupants:
        return None
    edited = [(o, o.request.params.edits) for o in occupants if o.request.params.edits is not None]
    if not edited:
        return None
    newcomers = [occupant for occupant, _ in edited]
    edits = [edit for _, edit in edited]
    seen = [_seen(occupant, edit) for occupant, edit in zip(newcomers, edits, strict=True)]
    reach = max((len(word) - 1 for edit in edits for word in edit.bad_words), default=0)
    ends = [[word[-1] for word in edit.bad_words] for edit in edits]
    return EditRows(
        slots=np.array([occupant.slot for occupant in newcomers], dtype=np.int32),
        presence=_floats([edit.presence for edit in edits]),
        frequency=_floats([edit.frequency for edit in edits]),
        repetition=_floats([edit.repetition for edit in edits]),
        bias_ids=_padded([[token for token, _ in edit.bias] for edit in edits]),
        bias_values=_values(edits),
        allowed_ids=_padded([edit.allowed for edit in edits]),
        word_beginnings=_beginnings(edits, reach),
        word_ends=_padded(ends),
        recent=_recent(newcomers, reach),
        seen_ids=_padded([ids for ids, _ in seen]),
        seen_counts=_padded([counts for _, counts in seen]),
    )


def _seen(occupant: Occupant, edits: TokenEdits) -> tuple[Int32s, Int32s]:
    """Every token once, ascending, and 2 * (times in the output) + (1 if in the prompt)."""
    if not edits.counts_tokens:
        return np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32)
    prompt = np.bincount(np.frombuffer(occupant.request.prompt, dtype=np.int32))
    output = np.bincount(np.frombuffer(occupant.generated, dtype=np.int32), minlength=prompt.size)
    counts = 2 * output
    counts[: prompt.size] += prompt > 0
    ids = np.flatnonzero(counts)
    return ids.astype(np.int32), counts[ids].astype(np.int32)


def _beginnings(edits: Sequence[TokenEdits], reach: int) -> Int32s:
    words = max(len(edit.bad_words) for edit in edits)
    beginnings = np.full((len(edits), words, reach), NO_TOKEN, dtype=np.int32)
    for row, edit in enumerate(edits):
        for number, word in enumerate(edit.bad_words):
            beginnings[row, number, reach - len(word) + 1 :] = word[:-1]
    return beginnings


def _recent(newcomers: Sequence[Occupant], reach: int) -> Int32s:
    """Of the output only: a word that began in the prompt is not one that the output contains."""
    recent = np.full((len(newcomers), reach), NO_TOKEN, dtype=np.int32)
    for row, occupant in enumerate(newcomers):
        last = np.frombuffer(occupant.generated, dtype=np.int32)[-reach:] if reach else ()
        if len(last):
            recent[row, -len(last) :] = last
    return recent


def _values(edits: Sequence[TokenEdits]) -> Float32s:
    values = np.zeros((len(edits), max(len(edit.bias) for edit in edits)), dtype=np.float32)
    for row, edit in enumerate(edits):
        values[row, : len(edit.bias)] = [value for _, value in edit.bias]
    return values


def _padded(lists: Sequence[Sequence[int] | Int32s]) -> Int32s:
    padded = np.full((len(lists), max(map(len, lists))), NO_TOKEN, dtype=np.int32)
    for row, values in enumerate(lists):
        padded[row, : len(values)] = values
    return padded


def _floats(values: Sequence[float]) -> npt.NDArray[np.float32]:
    return np.array(values, dtype=np.float32)
