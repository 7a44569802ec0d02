"""Messages as a prompt, in the plain text form of V4.1 (recipe_spec 2.3, without reasoning).

An embedder who has a list of messages should not need the protocol edge to ask one question. So this renders
system, user and assistant messages with text content, answered without visible reasoning. Everything beyond
(tools, reasoning, images, other versions) is the recipe's, which stands above the engine; a message that
needs it is refused here, never half understood.

Invariant: content is encoded literally, so a special token spelled by a user stays the characters it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InvalidParameterError
from .tokenizer import BEGIN_OF_TEXT, END_OF_TEXT, Tokenizer

Message = Mapping[str, Any]

_BEGIN_OF_ROLE = {"system": "<｜System｜>", "user": "<｜User｜>", "assistant": "<｜Assistant｜>"}
_NO_REASONING = "</think>"


def chat_tokens(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Token ids of a conversation that the assistant is to continue.

    Consecutive user messages are one turn, joined by a blank line. Raises `InvalidParameterError` for a
    message that is not a role and a text, and `UnknownTokenError` for a vocabulary without these roles.
    """
    ids = [tokenizer.token_id(BEGIN_OF_TEXT)]
    previous = ""
    for role, content in map(_checked, messages):
        if role == previous == "user":
            ids += tokenizer.encode(f"\n\n{content}", literal=True)
            continue
        ids.append(tokenizer.token_id(_BEGIN_OF_ROLE[role]))
        if role == "assistant":
            ids.append(tokenizer.token_id(_NO_REASONING))
        ids += tokenizer.encode(content, literal=True)
        if role == "assistant":
            ids.append(tokenizer.token_id(END_OF_TEXT))
        previous = role
    return [*ids, tokenizer.token_id(_BEGIN_OF_ROLE["assistant"]), tokenizer.token_id(_NO_REASONING)]


def _checked(message: Message) -> tuple[str, str]:
    role, content = message.get("role"), message.get("content")
    if role not in _BEGIN_OF_ROLE or not isinstance(content, str) or len(message) != 2:
        allowed = f"role ({', '.join(_BEGIN_OF_ROLE)}) and content (text); the recipe renders everything else"
        raise InvalidParameterError("message", dict(message), allowed)
    return role, content
