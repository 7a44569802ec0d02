"""How the output of one request is to be read."""

from __future__ import annotations

from enum import Enum

import msgspec

from ..special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens


class ThinkingStart(Enum):
    """Where a thinking model's output begins."""

    REASONING = "ReasoningStart"  # of a new turn: leading newlines are not part of it
    REASONING_CONTINUATION = "ReasoningContinuation"  # behind a prefix with unfinished reasoning
    CONTENT_CONTINUATION = "ContentContinuation"  # behind a prefix with a begun answer

    @property
    def is_reasoning(self) -> bool:
        return self is not ThinkingStart.CONTENT_CONTINUATION


class ParsingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`thinking_start` None: thinking is off. `starts_in_tool_calls`: the prompt opened the block already."""

    parse_tool_calls: bool = True
    starts_in_tool_calls: bool = False
    parse_json_output: bool = False
    thinking_start: ThinkingStart | None = None
    stop_sequences: tuple[str, ...] = ()
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS
