"""Token ids to text while they arrive.

A delta must hold whole characters only, the deltas must join to exactly what decoding everything at once
gives, and a token must cost the same however long the output already is. Tokens are byte strings here
(`TokenBytes`), so all three follow from an incremental UTF-8 decoder: it keeps at most three bytes of an
unfinished character.

The rule for a dangling tail: when the output ends in the middle of a character (an end token, a length
limit, a stop, a grammar: whatever ended it), `finish` gives one U+FFFD for the unfinished bytes, as
decoding all at once does. Dropping them instead would make a token that was counted and paid for vanish
without a trace.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from .token_bytes import TokenBytes

_new_decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of one sequence of tokens. Bytes that can never become a character give U+FFFD at once."""

    def __init__(self, table: TokenBytes, *, skip_special_tokens: bool = True) -> None:
        """With `skip_special_tokens` they give no text and do not end an unfinished character."""
        self._pieces = table.visible_pieces if skip_special_tokens else table.pieces
        self._whole_text = (table.visible_texts if skip_special_tokens else table.texts).__getitem__
        self._decoder = _new_decoder(errors="replace")
        self._unfinished = False  # the decoder holds bytes of a character that is still to come

    def push(self, token_ids: Sequence[int]) -> str:
        """The characters completed by these tokens; ids beyond the vocabulary give no text.

        A model's head may be wider than its tokenizer, so such an id is odd but possible. Raises `ValueError`
        for a negative id, which is never a token.
        """
        # Nearly all tokens are whole characters, and between such a token always says the same.
        if not self._unfinished:
            try:
                return "".join(map(self._whole_text, token_ids))
            except KeyError:
                pass
        return self._decode(token_ids)

    def _decode(self, token_ids: Sequence[int]) -> str:
        pieces, size = self._pieces, len(self._pieces)
        data = bytearray()
        for token_id in token_ids:
            if token_id < 0:
                raise ValueError(f"token id {token_id} is negative")
            if token_id < size:
                data += pieces[token_id]
        text = self._decoder.decode(data)
        self._unfinished = bool(self._decoder.getstate()[0])
        return text

    def finish(self) -> str:
        """The end: U+FFFD for an unfinished character, else nothing. Afterwards the detokenizer is as new."""
        self._unfinished = False
        return self._decoder.decode(b"", final=True)
