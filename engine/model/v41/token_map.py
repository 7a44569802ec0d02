"""Tokens that mean the same n-gram word share one id before they are hashed (model_spec 2.11).

" Hello", "hello" and "HELLO" are different tokens of the vocabulary but one word for the Engram memory. Every
token is decoded alone and normalised; tokens with the same result get the same compressed id, in order of
first appearance. A token that is no text on its own (a piece of a character) keeps its identity.

The steps and their order belong to the published model: another order, or one category of marks less, would
renumber nearly every token and look up the wrong rows. They run in the tokenizer library and not on Python's
`unicodedata`, whose tables change with the Python version.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, normalizers

from .config_types import ConfigError, ModelConfig

_REPLACEMENT = "\ufffd"
_PROTECTED_SPACE = "\ue000"  # private use: survives stripping

_NORMALISER = normalizers.Sequence(
    [
        normalizers.NFKC(),
        normalizers.NFD(),
        normalizers.StripAccents(),  # all marks: Mn, Mc and Me
        normalizers.Lowercase(),  # code point by code point, so without a final sigma
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
        normalizers.Replace(Regex(r"^ $"), _PROTECTED_SPACE),
        normalizers.Strip(),
        normalizers.Replace(_PROTECTED_SPACE, " "),
    ]
)


def engram_token_map(config: ModelConfig, tokenizer: Tokenizer | None) -> npt.NDArray[np.int64]:
    """What the Engram hash reads for every token id of a model, int64 [vocab_size].

    The identity when the model declares no compression (`tokenizer` is then not used). Otherwise the
    compressed map; raises `ConfigError` when the tokenizer does not give the declared number of ids, that is,
    when it is not the tokenizer the model was trained with.
    """
    declared = config.engram_compressed_vocab_size
    if not declared:
        return np.arange(config.vocab_size, dtype=np.int64)
    field = "text_config.engram_compressed_vocab_size"
    if tokenizer is None:
        raise ConfigError(field, declared, "0 for a model without a tokenizer")
    token_map = compressed_token_map(tokenizer, config.vocab_size)
    count = int(token_map[: tokenizer.get_vocab_size()].max()) + 1
    if count != declared:
        raise ConfigError(field, declared, f"{count}, which is what the tokenizer gives")
    return token_map


def compressed_token_map(tokenizer: Tokenizer, vocab_size: int) -> npt.NDArray[np.int64]:
    """Compressed id of every token id below `vocab_size`, int64 [vocab_size].

    Ids without a token decode to nothing and share one compressed id. The number of compressed ids is
    `map.max() + 1`; a model declares it as `engram_compressed_vocab_size`.
    """
    texts = tokenizer.decode_batch([[i] for i in range(vocab_size)], skip_special_tokens=False)
    ids: dict[str, int] = {}
    keys = (_key(tokenizer, token_id, text) for token_id, text in enumerate(texts))
    return np.fromiter((ids.setdefault(key, len(ids)) for key in keys), np.int64, count=vocab_size)


def _key(tokenizer: Tokenizer, token_id: int, text: str) -> str:
    """What tokens must have in common to share a compressed id."""
    if _REPLACEMENT in text:
        return tokenizer.id_to_token(token_id) or text
    return normalised(text) or text


def normalised(text: str) -> str:
    """Text without case, marks and surrounding space; empty when nothing else was there."""
    result: str = _NORMALISER.normalize_str(text)
    return result
