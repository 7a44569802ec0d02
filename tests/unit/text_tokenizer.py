"""A small byte-level tokenizer for tests of text, built in memory: every byte, some merges, special tokens.

The merges cut characters: one token holds a space and the first two bytes of an emoji, so that real splits of
characters occur without a large vocabulary.
"""

from __future__ import annotations

from functools import cache

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from stepahead.engine.text.token_bytes import byte_level_alphabet
from stepahead.engine.text.tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, PADDING, Tokenizer

USER = "<｜User｜>"
THINK = "<think>"
WORDS = (" wor", "ld", " five", ",", " s", "ix", "Ġ", " \U0001f469"[:2])
SPLIT_EMOJI = b" \xf0\x9f"  # a space and half of a character of four bytes


def _spell(data: bytes) -> str:
    characters = {byte: character for character, byte in byte_level_alphabet().items()}
    return "".join(characters[byte] for byte in data)


def _vocabulary() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Ids 0-4 are added later; then the 256 bytes; then words built by merging byte after byte."""
    vocabulary = {_spell(bytes([byte])): 5 + byte for byte in range(256)}
    merges: list[tuple[str, str]] = []
    for word in (*(word.encode() for word in WORDS), SPLIT_EMOJI):
        for end in range(2, len(word) + 1):
            pair = (_spell(word[: end - 1]), _spell(word[end - 1 : end]))
            if "".join(pair) not in vocabulary:
                vocabulary["".join(pair)] = len(vocabulary) + 5
                merges.append(pair)
    return vocabulary, merges


@cache
def definition() -> str:
    """The `tokenizer.json` of the test vocabulary."""
    vocabulary, merges = _vocabulary()
    added = [BEGIN_OF_TEXT, END_OF_TEXT, PADDING, USER, THINK]
    tokenizer = tokenizers.Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate(added)} | vocabulary, merges=merges)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in added[:4]])
    tokenizer.add_tokens([AddedToken(THINK, normalized=False, special=False)])
    return str(tokenizer.to_str())


@cache
def small_tokenizer(compatibility: str = "release") -> Tokenizer:
    return Tokenizer(definition(), compatibility=compatibility)
