"""Conversations of earlier responses, for `previous_response_id`.

In memory and bounded, by number and by characters: a client that never comes back must not cost anything for
long. Whoever needs more keeps the conversation himself, which every protocol allows.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import msgspec

from ..conversation import Message


class StoredResponse(msgspec.Struct, frozen=True):
    """A response as it was sent, and the conversation up to and including it."""

    body: dict[str, Any]
    messages: tuple[Message, ...]
    characters: int


class ResponseStore:
    """The latest responses by id."""

    def __init__(self, max_responses: int, max_characters: int) -> None:
        self._max_responses, self._max_characters = max_responses, max_characters
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._characters = 0

    @property
    def is_on(self) -> bool:
        return self._max_responses > 0

    def put(self, response_id: str, body: dict[str, Any], messages: tuple[Message, ...]) -> None:
        characters = sum(len(message.content) for message in messages)
        self._stored[response_id] = StoredResponse(body, messages, characters)
        self._characters += characters
        while self._stored and self._is_full():
            self.delete(next(iter(self._stored)))

    def _is_full(self) -> bool:
        return len(self._stored) > self._max_responses or self._characters > self._max_characters

    def get(self, response_id: str) -> StoredResponse | None:
        return self._stored.get(response_id)

    def delete(self, response_id: str) -> bool:
        """Whether there was one."""
        stored = self._stored.pop(response_id, None)
        if stored is not None:
            self._characters -= stored.characters
        return stored is not None
