"""The bytes behind every token id, as one table.

A byte-level vocabulary spells each byte as a printable character (the space is "Ġ"), so a token is a byte
string in disguise and text exists only after tokens are joined: a character of several bytes may be cut
anywhere. The table undoes the disguise once, at load; afterwards decoding is a lookup and a UTF-8 decoder.
Rejected: asking the tokenizer to decode prefixes of the output, which costs the whole output for each token
and shows half a character as U+FFFD until the rest arrives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress


def byte_level_alphabet() -> dict[str, int]:
    """The printable stand-in of each byte, inverted: character to byte.

    Bytes that print as themselves in Latin-1 stand for themselves; the other 68 (controls, spaces, the soft
    hyphen) take the characters from U+0100 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(hidden)}


_ALPHABET = byte_level_alphabet()
_TO_LATIN_1 = str.maketrans({character: chr(byte) for character, byte in _ALPHABET.items()})
_CHARACTERS = frozenset(_ALPHABET)


def spelled_bytes(token: str) -> bytes:
    """The bytes a token of the vocabulary stands for.

    A token with a character outside the alphabet cannot be in disguise (added tokens are often plain text)
    and stands for its own UTF-8.
    """
    if _CHARACTERS.issuperset(token):
        return token.translate(_TO_LATIN_1).encode("latin-1")
    return token.encode()


class WholeTexts(dict[int, str | None]):
    """The text of every id whose bytes are whole characters, found when first asked for.

    None for all others: parts of characters, bytes that are none, ids that are no token.
    """

    __slots__ = ("_pieces",)

    def __init__(self, pieces: tuple[bytes, ...]) -> None:
        self._pieces = pieces

    def __missing__(self, token_id: int) -> str | None:
        if not 0 <= token_id < len(self._pieces):
            return None
        text = None
        with suppress(UnicodeDecodeError):
            text = self._pieces[token_id].decode()
        self[token_id] = text
        return text


class TokenBytes:
    """Bytes of every id of a vocabulary; one per tokenizer, shared by all detokenizers."""

    def __init__(self, vocabulary: Mapping[str, int], special_ids: Iterable[int]) -> None:
        """`vocabulary` maps the spelling of every token, added ones included, to its id."""
        pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for token, token_id in vocabulary.items():
            pieces[token_id] = spelled_bytes(token)
        visible = list(pieces)
        for token_id in special_ids:
            visible[token_id] = b""
        self.pieces: tuple[bytes, ...] = tuple(pieces)
        """By id; an id without a token has no bytes."""
        self.visible_pieces: tuple[bytes, ...] = tuple(visible)
        """The same with special tokens empty."""
        self.texts = WholeTexts(self.pieces)
        self.visible_texts = WholeTexts(self.visible_pieces)

    def __len__(self) -> int:
        return len(self.pieces)
