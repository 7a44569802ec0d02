"""Stop strings in text that arrives in pieces.

A stop string may begin in one delta and end in another, so text that could still become one is held back;
all of it is released when the output ends some other way. Three rules decide what a reader sees: the match
that ends first wins; of several that end at the same character the shortest wins, whatever their order,
since it keeps the most text; nothing behind the match is ever released.

All stop strings are matched by one automaton (Aho and Corasick 1975). Its state is the longest end of the
text that begins some stop string, hence exactly what must be held back, and a character costs amortised
O(1) whatever the number and length of the stop strings. Rejected: searching the held text for each string
after each token, which is quadratic for a long stop string of repeated characters, in a place where one
request can slow others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ..errors import InvalidParameterError

_ROOT = 0


class _Automaton:
    """States are prefixes of the stop strings, the empty one first."""

    def __init__(self, stops: Sequence[str]) -> None:
        self.next: list[dict[str, int]] = [{}]
        self.depth: list[int] = [0]
        self.fallback: list[int] = [_ROOT]  # the longest proper end of this prefix that is a prefix too
        self.match: list[int] = [0]  # length of the shortest stop string this prefix ends with; 0 for none
        for stop in stops:
            self._insert(stop)
        self._link()

    def _insert(self, stop: str) -> None:
        state = _ROOT
        for character in stop:
            following = self.next[state].get(character)
            if following is None:
                following = len(self.next)
                self.next[state][character] = following
                self.next.append({})
                self.depth.append(self.depth[state] + 1)
                self.fallback.append(_ROOT)
                self.match.append(0)
            state = following
        self.match[state] = len(stop)

    def _link(self) -> None:
        """Breadth first, so that the shorter prefixes a fallback may lead to are finished before it."""
        queue = deque(self.next[_ROOT].values())
        while queue:
            state = queue.popleft()
            shorter = self.match[self.fallback[state]]
            self.match[state] = shorter or self.match[state]
            for character, following in self.next[state].items():
                self.fallback[following] = self.step(self.fallback[state], character)
                queue.append(following)

    def step(self, state: int, character: str) -> int:
        while state != _ROOT and character not in self.next[state]:
            state = self.fallback[state]
        return self.next[state].get(character, _ROOT)


class StopMatcher:
    """Passes text on until a stop string is complete. One per sequence."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """With `include_stop` the stop string itself is the last text released.

        Raises `InvalidParameterError` for an empty stop string, which would match before the first token.
        """
        if any(not stop for stop in stops):
            raise InvalidParameterError("stop", tuple(stops), "every stop string has at least one character")
        self._automaton = _Automaton(stops)
        self._include_stop = include_stop
        self._state = _ROOT
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text, once one did."""

    def push(self, text: str) -> str:
        """The text that may be shown now; nothing once a stop string has matched."""
        if self.matched is not None:
            return ""
        automaton, state = self._automaton, self._state
        buffer = self._held + text
        for end in range(len(self._held) + 1, len(buffer) + 1):
            state = automaton.step(state, buffer[end - 1])
            if automaton.match[state]:
                return self._stop(buffer[:end], automaton.match[state])
        self._state = state
        safe = len(buffer) - automaton.depth[state]
        self._held = buffer[safe:]
        return buffer[:safe]

    def _stop(self, text: str, length: int) -> str:
        self._held = ""
        self.matched = text[-length:]
        return text if self._include_stop else text[:-length]

    def finish(self) -> str:
        """The text ended without a stop string: everything held back."""
        held, self._held, self._state = self._held, "", _ROOT
        return held
