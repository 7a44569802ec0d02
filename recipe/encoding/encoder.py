"""Conversations to token ids, without encoding the same text twice.

Text between special tokens is encoded on its own, so its ids depend on nothing around it. A chat sends its
whole history with every turn; all of it but the last turn was encoded before, and is found again by the text
itself. Rejected: caching whole prompts (a turn changes the end of the text and so all of the key), and
caching by message (one message renders differently when reasoning is dropped, so the key would have to hold
half the conversation).

A miss is handed to the tokenizer in one batch, which uses several cores and does not hold the interpreter
lock; a large one runs in a thread, and one of megabytes in parts, so that nobody else waits for it.
"""

from __future__ import annotations

import asyncio
import os
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice

from ..conversation import Conversation
from ..special_tokens import SpecialTokens
from ..vocabulary import Vocabulary
from . import v4, v41
from .long_text import LONG, all_parts
from .rendered import RenderedPrompt

Render = Callable[[Conversation, SpecialTokens], RenderedPrompt]
RENDERERS: dict[str, Render] = {"v4": v4.render, "v4.1": v41.render}

_INLINE_CHARACTERS = 4096  # about 1.5 ms of tokenizer time; a hop to a thread costs 0.1 ms
_PARALLEL = max(1, (os.cpu_count() or 1) // 2)
"""Texts of a long prompt that are encoded at a time: half of the cores stay with the loop and the device."""


class PieceCache:
    """Ids of texts, the least recently used forgotten first. Not for use by several threads at once.

    Bounded by characters, since a text is kept as its own key: a character costs 1 to 4 bytes plus about one
    byte of ids.
    """

    def __init__(self, max_characters: int) -> None:
        self.max_characters = max_characters
        self.characters = 0
        self._ids: OrderedDict[str, bytes] = OrderedDict()

    def get(self, text: str) -> bytes | None:
        ids = self._ids.get(text)
        if ids is not None:
            self._ids.move_to_end(text)
        return ids

    def put(self, text: str, ids: bytes) -> None:
        if text in self._ids or len(text) > self.max_characters:
            return
        self._ids[text] = ids
        self.characters += len(text)
        while self.characters > self.max_characters:
            forgotten, _ = self._ids.popitem(last=False)
            self.characters -= len(forgotten)


def _packed(ids: Sequence[int]) -> bytes:
    """As C ints: what is joined a thousand times is joined fastest as bytes."""
    return array("i", ids).tobytes()


class PromptEncoder:
    """Renders and encodes for one model version and one vocabulary. Belongs to one event loop."""

    def __init__(
        self, vocabulary: Vocabulary, version: str = "v4.1", *, cache_characters: int = 16_000_000
    ) -> None:
        """`version` is a key of `RENDERERS`; `cache_characters` 0 turns the cache off."""
        self._vocabulary, self._render = vocabulary, RENDERERS[version]
        self._cache = PieceCache(cache_characters)

    def render(self, conversation: Conversation) -> RenderedPrompt:
        return self._render(conversation, self._vocabulary.tokens)

    def encode(self, rendered: RenderedPrompt) -> array[int]:
        """Token ids (C int). Raises `PromptEncodingError` for a special token the vocabulary lacks."""
        found, missing = self._look_up(rendered)
        self._learn(found, missing, self._encode_missing(missing))
        return self._join(rendered, found)

    async def encode_async(self, rendered: RenderedPrompt) -> array[int]:
        """The same without holding the loop for as long as a long text takes."""
        found, missing = self._look_up(rendered)
        if sum(map(len, missing)) <= _INLINE_CHARACTERS:
            encoded = self._encode_missing(missing)
        else:
            encoded = await asyncio.to_thread(self._encode_missing, missing)
        self._learn(found, missing, encoded)
        return self._join(rendered, found)

    def _look_up(self, rendered: RenderedPrompt) -> tuple[dict[str, bytes], list[str]]:
        found: dict[str, bytes] = {"": b""}
        missing: dict[str, None] = {}
        for text in rendered.pieces[0::2]:
            if text not in found:
                ids = self._cache.get(text)
                if ids is None:
                    missing[text] = None
                else:
                    found[text] = ids
        return found, list(missing)

    def _encode_missing(self, texts: Sequence[str]) -> list[bytes]:
        encode = self._vocabulary.tokenizer.encode_many
        if sum(map(len, texts)) <= LONG:
            return [_packed(ids) for ids in encode(texts, literal=True)] if texts else []
        parts, counts = all_parts(texts) if self._vocabulary.has_line_starts else (texts, [1] * len(texts))
        encoded: list[bytes] = []
        for start in range(0, len(parts), _PARALLEL):
            encoded += map(_packed, encode(parts[start : start + _PARALLEL], literal=True))
        in_order = iter(encoded)
        return [b"".join(islice(in_order, count)) for count in counts]

    def _learn(self, found: dict[str, bytes], texts: Sequence[str], encoded: Sequence[bytes]) -> None:
        for text, ids in zip(texts, encoded, strict=True):
            found[text] = ids
            self._cache.put(text, ids)

    def _join(self, rendered: RenderedPrompt, found: dict[str, bytes]) -> array[int]:
        """A text may spell a special token, so texts and tokens are looked up apart, by their places."""
        pieces, special_id = rendered.pieces, self._vocabulary.special_id
        special = {spelling: _packed((special_id(spelling),)) for spelling in dict.fromkeys(pieces[1::2])}
        parts = [b""] * len(pieces)
        parts[0::2] = map(found.__getitem__, pieces[0::2])
        parts[1::2] = map(special.__getitem__, pieces[1::2])
        ids = array("i")
        ids.frombytes(b"".join(parts))
        return ids
