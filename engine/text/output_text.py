"""What a reader sees of a sequence's tokens: characters, minus whatever a stop string cuts off.

The detokenizer knows bytes and the matcher knows characters; which *token* completed a stop string, so that
nothing sampled behind it is shown or counted, is known only by going token by token. That is done only for
requests that have stop strings and only once these may match (`min_tokens`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..types import ResolvedParams
from .detokenizer import Detokenizer
from .stop_matcher import StopMatcher


class OutputText:
    """Text of one sequence. Without a detokenizer there is none, and no stop string can match."""

    def __init__(self, detokenizer: Detokenizer | None, params: ResolvedParams) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher(params.stop, include_stop=params.include_stop) if params.stop else None
        self._unmatched = params.min_output  # tokens to come in which no stop string is looked for
        self.stopped = False
        """Whether a stop string ended the text; nothing is shown afterwards."""

    @property
    def plain(self) -> Callable[[Sequence[int]], str] | None:
        """The shorter `push` of a text that no stop string can end: all tokens count. None for others."""
        if self._matcher is not None:
            return None
        return _no_text if self._detokenizer is None else self._detokenizer.push

    def push(self, token_ids: Sequence[int]) -> tuple[str, int]:
        """The text these tokens release, and how many of them count: all, unless a stop string ends one."""
        if self._detokenizer is None:
            return "", len(token_ids)
        if self._matcher is None:
            return self._detokenizer.push(token_ids), len(token_ids)
        return self._push_one_by_one(token_ids, self._detokenizer, self._matcher)

    def _push_one_by_one(
        self, token_ids: Sequence[int], detokenizer: Detokenizer, matcher: StopMatcher
    ) -> tuple[str, int]:
        released = ""
        for used, token_id in enumerate(token_ids, 1):
            text = detokenizer.push((token_id,))
            if self._unmatched > 0:
                self._unmatched -= 1
                released += text
            else:
                released += matcher.push(text)
            if matcher.matched is not None:
                self.stopped = True
                return released, used
        return released, len(token_ids)

    def finish(self) -> str:
        """The output ended: what was held back, and U+FFFD for half a character."""
        tail = "" if self._detokenizer is None else self._detokenizer.finish()
        return tail if self._matcher is None else self._matcher.push(tail) + self._matcher.finish()


def _no_text(token_ids: Sequence[int]) -> str:
    return ""
