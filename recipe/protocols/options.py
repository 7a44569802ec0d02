"""What a server decides about the requests it converts."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens

ModelVersion = Literal["v4", "v4.1"]
WebSearch = Literal["drop", "reject"]

OFFICIAL_NAMES: dict[str, ModelVersion] = {"DeepSeek-V4-Pro": "v4", "DeepSeek-V4.1-Flash": "v4.1"}
MAX_TOKENS = 393216


class ConversionOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults convert exactly as the official codec; `extensions` adds what it lacks.

    `reject_missing_reasoning`: refuse a history whose latest turn lacks its reasoning.
    `web_search`: tools the server would have to run, per protocol.
    """

    model_versions: dict[str, ModelVersion] = msgspec.field(default_factory=OFFICIAL_NAMES.copy)
    default_thinking_mode: bool = True
    reject_missing_reasoning: bool = False
    responses_web_search: WebSearch = "drop"
    messages_web_search: WebSearch = "reject"
    thinking_max_tokens: int = MAX_TOKENS
    plain_max_tokens: int = MAX_TOKENS
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS
    extensions: bool = False
    """Honour what the official codec ignores or overrules: an explicit temperature or top_p while thinking,
    `max_completion_tokens`, `n` up to `max_choices`, the role `developer`, `tool_choice: any`, ..."""
    max_choices: int = 8
    """Most `n` with `extensions`."""

    def max_tokens(self, thinking: bool) -> int:
        return self.thinking_max_tokens if thinking else self.plain_max_tokens
