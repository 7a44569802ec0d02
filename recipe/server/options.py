"""What whoever mounts the application decides."""

from __future__ import annotations

import msgspec

from ..images import ImageOptions
from ..protocols.options import ConversionOptions, ModelVersion
from ..special_tokens import DEFAULT_SPECIAL_TOKENS, SpecialTokens

MODELS: dict[str, ModelVersion] = {"DeepSeek-V4.1-Flash": "v4.1", "stepahead": "v4.1"}


class ServerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Every knob of the application with its reason. Times are seconds, sizes bytes."""

    models: dict[str, ModelVersion] = msgspec.field(default_factory=MODELS.copy)
    """Names a request may call the model by, and how prompts are rendered for it."""
    default_thinking_mode: bool = True
    """Whether to think when a request does not say."""
    official: bool = False
    """Treat requests exactly as the official codec does (`recipe/DIFFERENCES.md`, marked ext)."""
    special_tokens: SpecialTokens = DEFAULT_SPECIAL_TOKENS
    api_keys: tuple[str, ...] = ()
    """Bearer keys, compared in constant time. None: open to whoever can connect."""
    max_body_bytes: int = 32 * 2**20
    """Larger bodies are refused while they arrive."""
    max_concurrent_requests: int = 1024
    """Requests being answered at a time; more are refused with 503 before they cost anything."""
    keep_alive_seconds: float = 10.0
    """A stream that says nothing for so long (a long prefill) sends a comment, or intermediaries hang up."""
    context_limit: int | None = None
    """Tokens of prompt and answer. None: the engine's configuration, or whatever the engine accepts."""
    max_choices: int = 8
    """Most `n` of a request."""
    isolate_users: bool = False
    """Never share cached prompts between users or sessions, at the price of computing them again."""
    stored_responses: int = 256
    """Conversations remembered for `previous_response_id`, the oldest forgotten first; 0 turns it off."""
    stored_characters: int = 16_000_000
    """Most characters of all remembered conversations."""
    cache_characters: int = 16_000_000
    """Prompt text whose token ids are remembered."""
    images: ImageOptions = msgspec.field(default_factory=ImageOptions)

    @property
    def conversion(self) -> ConversionOptions:
        return ConversionOptions(
            model_versions=self.models,
            default_thinking_mode=self.default_thinking_mode,
            special_tokens=self.special_tokens,
            extensions=not self.official,
            max_choices=self.max_choices,
        )
