"""Edits of single tokens' logits, one sequence at a time: the definition, as plainly as it can be written.

The batch builds one from the rows it is sent, the oracle from the request; from there both only append. So a
token the engine forgets to tell, or tells twice, changes the text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from stepahead.engine.types import TokenEdits

from ..runner import EditRows, Float32s


class SequenceEdits(msgspec.Struct, frozen=True):
    """What is to be changed, and what the sequence holds. `words` are whole bad words."""

    presence: float
    frequency: float
    repetition: float
    bias: Mapping[int, float]
    allowed: Sequence[int]
    words: Sequence[tuple[int, ...]]
    in_prompt: frozenset[int]
    output: Mapping[int, int]  # times each token is in the output
    recent: tuple[int, ...]  # end of the output, at least as long as the words

    def assuming(self, tokens: Sequence[int]) -> SequenceEdits:
        """The same with more output."""
        output = dict(self.output)
        for token in tokens:
            output[token] = output.get(token, 0) + 1
        return msgspec.structs.replace(self, output=output, recent=(*self.recent, *tokens))

    def apply(self, logits: Float32s) -> Float32s:
        """The edited row, float32 [vocab]."""
        edited = logits.copy()
        if (self.presence, self.frequency, self.repetition) != (0.0, 0.0, 1.0):
            self._penalise(edited)
        for token, value in self.bias.items():
            edited[token] += np.float32(value)
        if self.allowed:
            allowed = list(self.allowed)
            kept = edited[allowed]
            edited[:] = -np.inf
            edited[allowed] = kept
        for word in self.words:
            if self.recent[len(self.recent) - len(word) + 1 :] == word[:-1]:
                edited[word[-1]] = -np.inf
        return edited

    def _penalise(self, edited: Float32s) -> None:
        repetition = np.float32(self.repetition)
        for token in self.in_prompt | self.output.keys():
            value = edited[token] / repetition if edited[token] > 0 else edited[token] * repetition
            times = self.output.get(token, 0)
            value -= np.float32(self.frequency) * np.float32(times)
            edited[token] = value - np.float32(self.presence) * np.float32(times > 0)


def edits_of_request(edits: TokenEdits, prompt: Sequence[int]) -> SequenceEdits:
    """Of a request without output."""
    return SequenceEdits(
        edits.presence,
        edits.frequency,
        edits.repetition,
        dict(edits.bias),
        edits.allowed,
        edits.bad_words,
        frozenset(prompt),
        {},
        (),
    )


def edits_of_row(rows: EditRows, row: int) -> SequenceEdits:
    """Of one newcomer."""
    seen = [
        (i, c)
        for i, c in zip(rows.seen_ids[row].tolist(), rows.seen_counts[row].tolist(), strict=True)
        if i >= 0
    ]
    pairs = zip(rows.bias_ids[row].tolist(), rows.bias_values[row].tolist(), strict=True)
    beginnings = zip(rows.word_beginnings[row].tolist(), rows.word_ends[row].tolist(), strict=True)
    return SequenceEdits(
        float(rows.presence[row]),
        float(rows.frequency[row]),
        float(rows.repetition[row]),
        {token: value for token, value in pairs if token >= 0},
        [token for token in rows.allowed_ids[row].tolist() if token >= 0],
        [(*(t for t in before if t >= 0), end) for before, end in beginnings if end >= 0],
        frozenset(token for token, count in seen if count % 2),
        {token: count // 2 for token, count in seen if count >= 2},
        tuple(token for token in rows.recent[row].tolist() if token >= 0),
    )
