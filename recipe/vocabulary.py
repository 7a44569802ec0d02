"""What this package asks of a tokenizer, and the answers it prepares once per vocabulary.

The tokenizer is passed in (`Engine.tokenizer` fits), so that rendering and parsing need no engine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from .errors import PromptEncodingError
from .special_tokens import SpecialTokens

_PADDING = "<｜▁pad▁｜>"
_LINE_START = re.compile(rb"\n[A-Za-z]")
_SEPARATORS = ("bos", "eos", "system", "user", "assistant", "latest_reminder")


class TokenBytesLike(Protocol):
    @property
    def pieces(self) -> Sequence[bytes]:
        """The bytes of every id; of a special token, its spelling."""


class TokenizerLike(Protocol):
    """The part of `stepahead`'s tokenizer that is used here."""

    def encode_many(self, texts: Sequence[str], *, literal: bool) -> list[list[int]]:
        """Ids of each text; with `literal`, spellings of special tokens are ordinary characters."""

    def token_id(self, spelling: str) -> int:
        """The id of one token. Raises a `ValueError` or `LookupError` if there is none."""

    @property
    def token_bytes(self) -> TokenBytesLike:
        """Bytes by id."""


class Vocabulary:
    """One tokenizer with one set of special tokens. Shared by all requests."""

    def __init__(self, tokenizer: TokenizerLike, tokens: SpecialTokens) -> None:
        self.tokenizer, self.tokens = tokenizer, tokens
        self.pieces = tokenizer.token_bytes.pieces
        self.dsml_id, self.thinking_end_id = self._find(tokens.dsml), self._find(tokens.thinking_end)
        self.end_id = self._find(tokens.eos)
        separators = (_PADDING, *(getattr(tokens, name) for name in _SEPARATORS))
        self.hidden_ids = frozenset(
            found for spelling in separators if (found := self._find(spelling)) is not None
        )
        """Tokens that separate turns: never text for a reader, whatever a model emits."""
        self._special_ids: dict[str, int] = {}

    @cached_property
    def texts(self) -> list[str | None]:
        """The text of every id, where its bytes are whole characters."""
        return [_text(piece) for piece in self.pieces]

    @cached_property
    def has_line_starts(self) -> bool:
        """Whether every token ends at a newline that a letter follows."""
        return not any(_LINE_START.search(piece) for piece in self.pieces)

    def prepare(self) -> None:
        """Make now what would hold up the first request: half a second with a large vocabulary."""
        self.tokenizer.encode_many(["a"], literal=True)
        _ = self.texts, self.has_line_starts

    def _find(self, spelling: str) -> int | None:
        try:
            return self.tokenizer.token_id(spelling)
        except (LookupError, ValueError):
            return None

    def special_id(self, spelling: str) -> int:
        """The id of a special token. Raises `PromptEncodingError`."""
        known = self._special_ids.get(spelling)
        if known is None:
            known = self._find(spelling)
            if known is None:
                raise PromptEncodingError(spelling)
            self._special_ids[spelling] = known
        return known


def _text(piece: bytes) -> str | None:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return None
