"""Which tokens mean the same to the n-gram memory (model_spec 2.11).

Engram hashes the last few tokens. Spellings that differ only in case, accents, width or white space should
hit the same row, so every id is first mapped to the id of its normalised text. The map must be reproduced
exactly: one token that lands elsewhere renumbers all that follow, and every hash of the model changes.
"""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import numpy.typing as npt

from .tokenizer import Tokenizer

_SPACES = re.compile(r"[ \t\r\n]+")
_LONE_SPACE = "\ue000"  # a private character that survives stripping
_REPLACEMENT = "\ufffd"


def compressed_token_ids(tokenizer: Tokenizer) -> npt.NDArray[np.int64]:
    """The compressed id of every id of the vocabulary, `[vocab_size]` int64, numbered by first appearance."""
    numbers: dict[str, int] = {}
    ids = [
        numbers.setdefault(_key(data, tokenizer.spelling(token_id)), len(numbers))
        for token_id, data in enumerate(tokenizer.token_bytes.pieces)
    ]
    return np.array(ids, dtype=np.int64)


def _key(data: bytes, spelling: str | None) -> str:
    """What a token is known by: its normalised text, or its spelling if it is no whole text."""
    text = data.decode("utf-8", errors="replace")
    if _REPLACEMENT in text:
        return spelling or ""
    return normalise(text) or text


def normalise(text: str) -> str:
    """Fold width, accents, case and white space; a text of white space alone stays one space.

    Lower case is taken character by character: the final-sigma rule of a whole string would split Greek
    words.
    """
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    bare = "".join(c.lower() for c in decomposed if not unicodedata.category(c).startswith("M"))
    folded = _SPACES.sub(" ", bare)
    if folded == " ":
        folded = _LONE_SPACE
    return folded.strip().replace(_LONE_SPACE, " ")
