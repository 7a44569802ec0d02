"""From text to ids: the tokenizer, and one compressed array of tokens that can travel to another machine.

A training machine may have no registry and little room, so the text stays behind: `corpus.npz.xz` holds
every document as ids with its begin and end tokens, documents back to back, and where each starts, which
source it belongs to and whether it is held out.
"""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from stepahead.engine.model.v41.token_map import compressed_token_map

from . import chat, tokenizer
from .corpus import Document, documents
from .sources import Source

_TOKENIZER_SHARE = 0.45  # of the documents, to learn merges from
_ENCODE_BATCH = 2000


def train_tokenizer(found: list[Document], vocab_size: int, folder: Path) -> Tokenizer:
    texts = (
        d.text for i, d in enumerate(d for d in found if not d.held_out) if i % 20 < 20 * _TOKENIZER_SHARE
    )
    learned = tokenizer.train(texts, vocab_size)
    tokenizer.save(learned, folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def encode(found: list[Document], encoder: Tokenizer) -> Iterator[np.ndarray]:
    """Ids of each document between begin and end; rendered chats bring their own end token."""
    encoder.encode_special_tokens = False
    for start in range(0, len(found), _ENCODE_BATCH):
        part = [d.text for d in found[start : start + _ENCODE_BATCH]]
        texts = [chat.BOS + t + ("" if t.endswith(chat.EOS) else chat.EOS) for t in part]
        for encoding in encoder.encode_batch(texts, add_special_tokens=False):
            yield np.array(encoding.ids, dtype=np.uint16)


def prepare(
    sources: tuple[Source, ...], cache: Path, model_folder: Path, out: Path, scale: float = 1.0
) -> None:
    """Write the token arrays; learn a tokenizer into `model_folder` only when there is none yet."""
    out.mkdir(parents=True, exist_ok=True)
    found = list(documents(sources, cache, scale))
    existing = model_folder / "tokenizer.json"
    vocab_size = json.loads((model_folder / "config.json").read_text())["text_config"]["vocab_size"]
    encoder = (
        Tokenizer.from_file(str(existing))
        if existing.exists()
        else train_tokenizer(found, vocab_size, model_folder)
    )
    ids = list(encode(found, encoder))
    token_map = compressed_token_map(encoder, vocab_size)
    table: dict[str, np.ndarray] = {
        "lengths": np.array([len(i) for i in ids], dtype=np.int32),
        "bytes": np.array([len(d.text.encode()) for d in found], dtype=np.int32),
        "source": np.array([d.source for d in found], dtype=np.uint8),
        "held_out": np.array([d.held_out for d in found], dtype=bool),
    }
    _write(out / "corpus.npz.xz", ids, table, token_map, [(s.name, s.weight) for s in sources])
    total, held = int(table["lengths"].sum()), int(table["lengths"][table["held_out"]].sum())
    per_token = table["bytes"].sum() / total
    print(f"documents {len(ids)} tokens {total} held out {held} bytes per token {per_token:.3f}")
    for index, source in enumerate(sources):
        mine = table["source"] == index
        print(f"  {source.name}: {int(mine.sum())} documents, {int(table['lengths'][mine].sum())} tokens")


def _write(
    path: Path, ids: list[np.ndarray], table: dict[str, np.ndarray], token_map: np.ndarray,
    names: list[tuple[str, float]],
) -> None:  # fmt: skip
    buffer = io.BytesIO()
    info = np.frombuffer(json.dumps(names).encode(), dtype=np.uint8)
    arrays = {
        **table,
        "tokens": np.concatenate(ids),
        "sources": info,
        "token_map": token_map.astype(np.int32),
    }
    np.savez(buffer, **arrays)  # type: ignore[arg-type]  # the stubs take arrays for a flag
    path.write_bytes(lzma.compress(buffer.getvalue(), preset=4))
