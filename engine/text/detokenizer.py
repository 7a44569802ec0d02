"""Token ids to text while they arrive.

A delta must hold whole characters only, the deltas must join to exactly what decoding everything at once
gives, and a token must cost the same however long the output already is. Tokens are byte strings here
(`TokenBytes`), so all three follow from decoding UTF-8 as far as it goes: at most three bytes of an
unfinished character wait for the next token. Most tokens are whole characters, and a look-up.

The rule for a dangling tail: when the output ends in the middle of a character (an end token, a length
limit, a stop, a grammar: whatever ended it), `finish` gives one U+FFFD for the unfinished bytes, as
decoding all at once does. Dropping them instead would make a token that was counted and paid for vanish
without a trace.
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Sequence

from .token_bytes import TokenBytes


class Detokenizer:
    """Text of one sequence of tokens. Bytes that can never become a character give U+FFFD at once."""

    def __init__(self, table: TokenBytes, *, skip_special_tokens: bool = True) -> None:
        """With `skip_special_tokens` they give no text and do not end an unfinished character."""
        self._pieces = table.visible_pieces if skip_special_tokens else table.pieces
        self._whole_text = (table.visible_texts if skip_special_tokens else table.texts).__getitem__
        self._unfinished = b""  # the beginning of a character

    def push(self, token_ids: Sequence[int]) -> str:
        """The characters completed by these tokens; ids beyond the vocabulary give no text.

        A model's head may be wider than its tokenizer, so such an id is odd but possible. Raises `ValueError`
        for a negative id, which is never a token.
        """
        if not self._unfinished:
            try:
                return "".join(map(self._whole_text, token_ids))  # type: ignore[arg-type]  # None: below
            except TypeError:
                pass  # one of them is no whole character
        data = self._unfinished + b"".join(map(self._bytes, token_ids))
        text, used = utf_8_decode(data, "replace", False)
        self._unfinished = data[used:]
        return text

    def _bytes(self, token_id: int) -> bytes:
        if token_id < 0:
            raise ValueError(f"token id {token_id} is negative")
        return self._pieces[token_id] if token_id < len(self._pieces) else b""

    def finish(self) -> str:
        """The end: U+FFFD for an unfinished character, else nothing. Afterwards the detokenizer is as new."""
        text, _ = utf_8_decode(self._unfinished, "replace", True)
        self._unfinished = b""
        return text
