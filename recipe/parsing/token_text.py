"""Token ids as the parser's input: characters, and one private character for each token that is a marker.

A character of several bytes may be spread over tokens, so bytes wait until their character is whole. Bytes
that cannot become one are shown as U+FFFD: at once where that is certain, at a special token, or at the end.
That is the one rule for a dangling tail, the engine's own too; the official codec drops it without a trace.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from ..vocabulary import Vocabulary
from .parser import BY_ID

_new_decoder = codecs.getincrementaldecoder("utf-8")


class TokenText:
    """Decodes one output."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._pieces, self._size = vocabulary.pieces, len(vocabulary.pieces)
        self._texts = vocabulary.texts
        self._specials: dict[int, str] = dict.fromkeys(vocabulary.hidden_ids, "")
        if vocabulary.dsml_id is not None:
            self._specials[vocabulary.dsml_id] = BY_ID.dsml
        if vocabulary.thinking_end_id is not None:
            self._specials[vocabulary.thinking_end_id] = BY_ID.thinking_end
        self._decoder = _new_decoder(errors="replace")
        self._is_waiting = False  # for the rest of a character

    def push(self, token_ids: Sequence[int]) -> str:
        """The characters these tokens complete. An id beyond the vocabulary gives none."""
        specials, pieces = self._specials, self._pieces
        if len(token_ids) == 1 and 0 <= (token := token_ids[0]) < self._size and token not in specials:
            text = None if self._is_waiting else self._texts[token]
            return self._decoded(pieces[token]) if text is None else text
        text, data = "", bytearray()
        for token in token_ids:
            special = specials.get(token)
            if special is not None:
                text += self._decoder.decode(data, True) + special
                data.clear()
            elif 0 <= token < self._size:
                data += pieces[token]
        return text + self._decoded(data)

    def _decoded(self, data: bytes | bytearray) -> str:
        text = self._decoder.decode(data)
        self._is_waiting = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """U+FFFD for an unfinished character, else nothing."""
        return self._decoder.decode(b"", True)
