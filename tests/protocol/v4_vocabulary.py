"""The real V4 vocabulary, in our tokenizer."""

from __future__ import annotations

import functools

from stepahead.engine.text.tokenizer import Tokenizer
from stepahead.recipe.special_tokens import DEFAULT_SPECIAL_TOKENS
from stepahead.recipe.vocabulary import Vocabulary

from . import official


@functools.cache
def vocabulary() -> Vocabulary:
    return Vocabulary(Tokenizer(official.tokenizer_definition()), DEFAULT_SPECIAL_TOKENS)
