"""Beginnings of documents that the built-in model never saw, by source: what its speculation is judged on."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer

from .data import Documents
from .measure import PROMPTS

_OWN = ("README.md", "CONTRIBUTING.md", "engine/README.md", "docs/sampling.md")
_BLOCK = 48  # tokens between the prompts cut from one of our documents
_ROOT = Path(__file__).resolve().parents[2]


def held_out_prompts(tokens: Path, model: Path, most: int, length: int) -> dict[str, list[list[int]]]:
    """Up to `most` prompts of `length` ids a source; without the corpus from texts of this project."""
    if not tokens.is_file():
        return _own_prompts(model, most, length)
    held_out = Documents(tokens, torch.device("cpu"), held_out=True)
    prompts = {}
    for index, (name, _) in enumerate(held_out.sources):
        long_enough = (held_out.source == index) & (held_out.lengths > length)
        chosen = torch.nonzero(long_enough).flatten()[:most].tolist()
        prompts[name] = [held_out.document(d)[:length].tolist() for d in chosen]
    return prompts


def _own_prompts(model: Path, most: int, length: int) -> dict[str, list[list[int]]]:
    encoder = Tokenizer.from_file(str(model / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return list(encoder.encode(text, add_special_tokens=False).ids)

    prompts = {"samples": [ids(text) for text in PROMPTS][:most]}
    for name in _OWN:
        document = ids((_ROOT / name).read_text())
        starts = range(0, len(document) - length, _BLOCK)
        prompts[name] = [document[start : start + length] for start in starts][:most]
    return prompts
