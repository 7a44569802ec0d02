"""Finding the first of several markers in text that arrives in pieces.

A marker set knows its complete markers as one regular expression and all their proper beginnings as a set,
so that the end of a piece is kept back exactly when it may be the beginning of one. Markers are short, which
bounds what is kept back and what is looked at again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


class MarkerSet:
    """The markers that are looked for in one stage of the output; earlier ones win a tie."""

    def __init__(self, *markers: str) -> None:
        self.search = re.compile("|".join(map(re.escape, markers))).search if markers else _never
        self._beginnings = {marker[:size] for marker in markers for size in range(1, len(marker))}
        self._longest = max((len(beginning) for beginning in self._beginnings), default=0)
        self._last_characters = frozenset(beginning[-1] for beginning in self._beginnings)
        self.first_characters = frozenset(marker[0] for marker in markers)

    def unfinished(self, text: str, start: int) -> int:
        """How many characters at the end of `text[start:]` may be the beginning of a marker; the most."""
        end = len(text)
        if start >= end or text[-1] not in self._last_characters:
            return 0
        for size in range(min(self._longest, end - start), 0, -1):
            if text[end - size :] in self._beginnings:
                return size
        return 0


_never = re.compile(r"(?!)").search


class StopSequences:
    """All stop sequences as one automaton (Aho and Corasick 1975): the match that ends first, shortest first.

    The state is the longest end of the text that begins a stop sequence, which is what must be held back.
    A character costs amortised O(1) whatever the stop sequences are; a search for each of them after each
    piece would be quadratic for one that keeps nearly matching.
    """

    def __init__(self, sequences: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fallback = [0]
        self._match: list[str] = [""]
        self._depth = [0]
        self._state = 0
        for sequence in dict.fromkeys(sequences):
            self._insert(sequence)
        self._link()
        self.first_characters = frozenset(self._next[0])

    def _insert(self, sequence: str) -> None:
        state = 0
        for character in sequence:
            following = self._next[state].get(character)
            if following is None:
                following = self._next[state][character] = len(self._next)
                self._next.append({})
                self._fallback.append(0)
                self._match.append("")
                self._depth.append(self._depth[state] + 1)
            state = following
        self._match[state] = sequence

    def _link(self) -> None:
        level = list(self._next[0].values())
        while level:
            for state in level:
                self._match[state] = self._match[self._fallback[state]] or self._match[state]
                for character, following in self._next[state].items():
                    self._fallback[following] = self._step(self._fallback[state], character)
            level = [following for state in level for following in self._next[state].values()]

    def _step(self, state: int, character: str) -> int:
        while state and character not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(character, 0)

    @property
    def depth(self) -> int:
        """How many of the characters seen last begin a stop sequence."""
        return self._depth[self._state]

    def reset(self) -> None:
        self._state = 0

    def scan(self, text: str, start: int, end: int) -> tuple[int, str] | None:
        """Read `text[start:end]`; where the first stop sequence ended, and which, or None."""
        state, following, match = self._state, self._next, self._match
        for position in range(start, end):
            character = text[position]
            while state and character not in following[state]:
                state = self._fallback[state]
            state = following[state].get(character, 0)
            if match[state]:
                self._state = state
                return position + 1, match[state]
        self._state = state
        return None
