"""A request after conversion: what to say to the model, how to sample, how to read what it says."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..conversation import Conversation
from ..errors import ConversionError
from ..parsing.options import ParsingOptions
from .options import ModelVersion

ConstraintKind = Literal["json", "regex", "tool_call", "tool_call_required"]


class OutputConstraint(msgspec.Struct, frozen=True):
    """What constrained decoding would enforce.

    `schema` is compact JSON of a schema ("" for any JSON object) or of a list of function tools, or a regular
    expression. `is_required`: the client asked for enforcement (`strict`, a schema, an expression), so that
    going on without would be a lie.
    """

    kind: ConstraintKind
    schema: str
    is_required: bool = False


class InferenceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Sampling as the protocols express it. The second group is what the official codec drops."""

    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    logprobs: bool = False
    top_logprobs: int | None = None
    seed: int | None = None
    output_constraint: OutputConstraint | None = None

    n: int = 1
    top_k: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)


class ConversationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """`cache_key` groups requests of a user or session, `retention` says how long to keep their prefix."""

    conversation: Conversation
    model: str
    model_version: ModelVersion
    inference: InferenceOptions
    parsing: ParsingOptions
    stream: bool = False
    include_usage: bool = False
    cache_key: str | None = None
    retention: str | None = None

    def resolve_max_tokens(self, prompt_tokens: int, context_limit: int) -> int:
        """Output tokens to ask the engine for: what was requested, or a default, cut to the context.

        Raises `ConversionError` when prompt and requested output do not fit.
        """
        requested = self.inference.max_tokens
        if prompt_tokens + (requested or 0) > context_limit:
            raise ConversionError(
                f"This model's maximum context length is {context_limit} tokens. However, you requested "
                f"{prompt_tokens + (requested or 0)} tokens ({prompt_tokens} in the messages, "
                f"{requested or 0} in the completion). "
                "Please reduce the length of the messages or completion."
            )
        wanted = self._default_max_tokens() if requested is None else requested
        return max(1, min(wanted, context_limit - prompt_tokens))

    def _default_max_tokens(self) -> int:
        if not self.conversation.thinking_mode:
            return 8192
        return 131072 if self.conversation.reasoning_effort == "max" else 65536
