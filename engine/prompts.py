"""Whatever a caller may pass as a prompt, as the token array the engine works with.

The form decides nothing later on: text, messages and ids become int32 tokens here. A long prompt takes a
second, so callers run this off the loop when `is_long`; for the same reason no call below holds the
interpreter lock for long (a conversion of a million Python ints in one call would).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from .errors import InvalidParameterError, PromptTooLongError, TokenOutOfVocabularyError
from .text.chat import Message, chat_tokens
from .text.tokenizer import Tokenizer

TokenIds = Sequence[int]
Prompt = str | TokenIds | npt.NDArray[np.integer] | Sequence[Message]

LONG = 8192
"""Characters or ids from which a prompt is prepared off the loop; below, it takes less than 2 ms."""

_AT_ONCE = 16384  # ids converted per call, about 1 ms
_ALLOWED = "text, token ids, or messages"


def is_long(prompt: Prompt) -> bool:
    """Whether preparing the prompt would hold up an event loop."""
    if not isinstance(prompt, Sequence | np.ndarray):
        return False  # refused soon enough
    if isinstance(prompt, str) or not _are_messages(prompt):
        return len(prompt) > LONG
    return sum(len(str(message.get("content"))) for message in prompt if isinstance(message, Mapping)) > LONG


def prompt_tokens(
    prompt: Prompt, tokenizer: Tokenizer | None, vocab_size: int, context: int
) -> npt.NDArray[np.int32]:
    """Token ids, int32 [tokens]. Raises a subclass of `InvalidRequestError`."""
    if isinstance(prompt, np.ndarray):
        return _from_array(prompt, vocab_size)
    if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray | memoryview):
        raise InvalidParameterError("prompt", prompt, _ALLOWED)
    if not isinstance(prompt, str) and not _are_messages(prompt):
        if len(prompt) > context:
            raise PromptTooLongError(len(prompt), context)
        return _from_array(_converted(cast(TokenIds, prompt)), vocab_size)
    if tokenizer is None:
        raise InvalidParameterError("prompt", prompt, "token ids: this engine was opened without a tokenizer")
    if isinstance(prompt, str):
        return _from_array(_converted(tokenizer.encode_prompt(prompt, context)), vocab_size)
    return _from_array(_converted(chat_tokens(tokenizer, prompt)), vocab_size)


def _are_messages(prompt: object) -> TypeGuard[Sequence[Message]]:
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _converted(ids: Sequence[int]) -> npt.NDArray[Any]:
    parts: list[npt.NDArray[Any]] = []
    for start in range(0, len(ids), _AT_ONCE):
        try:
            parts.append(np.asarray(ids[start : start + _AT_ONCE]))
        except (ValueError, OverflowError):
            parts.append(np.asarray(ids[start : start + _AT_ONCE], dtype=object))
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def _from_array(ids: npt.NDArray[Any], vocab_size: int) -> npt.NDArray[np.int32]:
    """Checks before narrowing: an id beyond int32 must be refused, not wrapped into the vocabulary."""
    if ids.size == 0:
        return np.empty(0, dtype=np.int32)
    if ids.ndim != 1 or not (np.issubdtype(ids.dtype, np.integer) or _only_integers(ids)):
        raise InvalidParameterError("prompt", _example(ids), _ALLOWED)
    outside = (ids < 0) | (ids >= vocab_size)
    if outside.any():
        position = int(outside.argmax())
        raise TokenOutOfVocabularyError(position, int(ids[position]), vocab_size)
    return ids.astype(np.int32)


def _only_integers(ids: npt.NDArray[Any]) -> bool:
    """Python ints beyond 64 bits arrive as objects."""
    return ids.dtype == object and all(type(value) is int for value in ids.tolist())


def _example(ids: npt.NDArray[Any]) -> object:
    return ids[:3].tolist()
