"""The corpus: documents of every source, cleaned, capped, and split into training and held-out by document
hash.

The split depends on a document's text alone, so adding a source or changing a cap never moves a document
from one side to the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from .clean import Deduplicator
from .sources import Source

HELD_OUT_PERCENT = 1
_SHORTEST = 20


@dataclass(frozen=True)
class Document:
    source: int
    text: str
    held_out: bool


def is_held_out(text: str) -> bool:
    """One document in a hundred, by the hash of its text."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 100 < HELD_OUT_PERCENT


def documents(sources: tuple[Source, ...], cache: Path, scale: float = 1.0) -> Iterator[Document]:
    """All documents, source by source; `scale` shrinks every source's cap (a smoke run needs little)."""
    duplicates = Deduplicator()
    seen: set[int] = set()
    for index, source in enumerate(sources):
        left = int(source.megabytes * scale * 1e6)
        templated = source.origin.startswith("templates") or source.name in ("function-calls", "wordnet")
        for raw in source.read(cache):
            text = raw if templated else duplicates(raw)
            if len(text) < _SHORTEST or hash(text) in seen:
                continue
            seen.add(hash(text))
            left -= len(text.encode())
            if left < 0:
                break
            yield Document(index, text, is_held_out(text))
