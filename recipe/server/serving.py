"""A converted request on its way into the engine: prompt, ids, parameters, and what cannot be promised."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import numpy as np

from stepahead import SamplingParams

from ..encoding.encoder import PromptEncoder
from ..errors import UnsupportedFeatureError
from ..protocols.request import ConversationRequest
from ..vocabulary import Vocabulary
from .engine_like import Abilities, EngineLike, EngineStream
from .options import ServerOptions

_LARGE_BODY = 65536  # bytes from which a body is converted off the loop: 1 ms and more

Converted = TypeVar("Converted")


class Prompt(msgspec.Struct, frozen=True):
    """An encoded prompt. `max_tokens` is the output to ask the engine for; None: what it has room for."""

    token_ids: Any  # int32 [tokens]
    max_tokens: int | None

    @property
    def tokens(self) -> int:
        return len(self.token_ids)


class Serving:
    """What all requests to one engine share. Belongs to the engine's loop."""

    def __init__(self, engine: EngineLike, options: ServerOptions) -> None:
        if engine.tokenizer is None:
            raise ValueError("the engine was opened without a tokenizer, so it can serve no text")
        self.engine, self.options = engine, options
        self.conversion = options.conversion
        self.abilities = Abilities(engine)
        self.vocabulary = Vocabulary(engine.tokenizer, options.special_tokens)
        self.vocabulary.prepare()
        cache = options.cache_characters
        self._encoders = {
            version: PromptEncoder(self.vocabulary, version, cache_characters=cache)
            for version in set(options.models.values())
        }
        self._context_limit = options.context_limit or getattr(
            getattr(engine, "config", None), "max_context", None
        )
        # The end of text must stay possible: it is how a model stops.
        self._never = tuple(sorted(self.vocabulary.hidden_ids - {self.vocabulary.end_id}))

    async def convert(self, convert: Callable[[bytes], Converted], raw: bytes) -> Converted:
        """Off the loop where that would hold it up."""
        return convert(raw) if len(raw) < _LARGE_BODY else await asyncio.to_thread(convert, raw)

    async def prompt(self, request: ConversationRequest) -> Prompt:
        """Raises `ConversionError` for what does not fit or cannot be done."""
        self._check(request)
        encoder = self._encoders[request.model_version]
        is_large = sum(len(message.content) for message in request.conversation.messages) > _LARGE_BODY
        if is_large:
            rendered = await asyncio.to_thread(encoder.render, request.conversation)
        else:
            rendered = encoder.render(request.conversation)
        ids = await encoder.encode_async(rendered)
        max_tokens = request.inference.max_tokens
        if self._context_limit is not None:
            max_tokens = request.resolve_max_tokens(len(ids), self._context_limit)
        elif max_tokens is None:
            max_tokens = request.resolve_max_tokens(len(ids), 2**31)
        return Prompt(np.frombuffer(ids, dtype=np.intc).astype(np.int32, copy=False), max_tokens)

    def _check(self, request: ConversationRequest) -> None:
        constraint = request.inference.output_constraint
        if constraint is not None and constraint.is_required and self.abilities.grammar is None:
            raise UnsupportedFeatureError(
                f"this server cannot enforce a {_CONSTRAINTS[constraint.kind]}; "
                "describe it in the prompt, or leave out `strict`",
                kind="unsupported_parameter",
            )
        if not self.abilities.images and any(
            getattr(message, "images", ()) for message in request.conversation.messages
        ):
            raise UnsupportedFeatureError(
                "the model this server runs does not see images", kind="unsupported_parameter"
            )

    def params(self, request: ConversationRequest, max_tokens: int | None) -> SamplingParams:
        """What the engine samples by. Stop sequences are the parser's: they apply to the answer only."""
        inference = request.inference
        fields: dict[str, Any] = {
            "temperature": inference.temperature,
            "top_p": inference.top_p,
            "top_k": inference.top_k or 0,
            "seed": inference.seed,
            "n": inference.n,
            "max_tokens": max_tokens,
            "presence_penalty": inference.presence_penalty if self.conversion.extensions else 0.0,
            "frequency_penalty": inference.frequency_penalty if self.conversion.extensions else 0.0,
            "logit_bias": inference.logit_bias or None,
            "banned_token_ids": self._never,
            "logprobs": (inference.top_logprobs or 0) if inference.logprobs else None,
            "detokenize": False,
        }
        if self.abilities.grammar is not None and inference.output_constraint is not None:
            fields[self.abilities.grammar] = inference.output_constraint
        return SamplingParams(**fields)

    async def open(self, request: ConversationRequest, prompt: Prompt) -> EngineStream:
        """The request, queued. Raises the engine's errors for one it cannot take."""
        extra: dict[str, Any] = {}
        if self.abilities.session and request.cache_key is not None:
            extra["session"] = request.cache_key
        if self.abilities.retention:
            extra["retention"] = _retention(request)
        stream = self.engine.stream(
            prompt.token_ids,
            self.params(request, prompt.max_tokens),
            request_id=f"req_{secrets.token_hex(8)}",
            cache_salt=(request.cache_key or "") if self.options.isolate_users else "",
            **extra,
        )
        await stream.start()
        return stream


_RETENTIONS = {"in_memory": "chat", "in-memory": "chat", "24h": "agent", "chat": "chat", "agent": "agent"}
"""OpenAI's words for how long to keep a prompt, and the engine's own."""


def _retention(request: ConversationRequest) -> str:
    """Who has tools comes back with their results, and then as often as it calls them."""
    asked = request.retention
    if asked is None:
        return "agent" if request.conversation.tools else "chat"
    if asked not in _RETENTIONS:
        allowed = ", ".join(map(repr, _RETENTIONS))
        raise UnsupportedFeatureError(
            f"prompt_cache_retention is {asked!r}; it can be one of {allowed}", kind="unsupported_parameter"
        )
    return _RETENTIONS[asked]


_CONSTRAINTS = {
    "json": "JSON schema",
    "regex": "regular expression",
    "tool_call": "strict tool schema",
    "tool_call_required": "strict tool schema",
}
