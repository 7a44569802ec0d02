"""What the official codec leaves out of Chat Completions: read only with `ConversionOptions.extensions`."""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import ConversionError
from .. import sampling
from ..options import ConversionOptions
from ..request import ConversationRequest
from .body import ChatBody

_MAX_BIASES = 1024


def choices(n: int | None, options: ConversionOptions) -> int:
    most = options.max_choices if options.extensions else 1
    if n is not None and not 1 <= n <= most:
        allowed = f"the valid range of n is [1, {most}]" if most > 1 else "currently only n = 1 is supported"
        raise ConversionError(f"Invalid n value ({allowed})")
    return n or 1


def apply(request: ConversationRequest, body: ChatBody, options: ConversionOptions) -> ConversationRequest:
    """The request with everything else its body asks for. Raises `ConversionError`."""
    if not options.extensions:
        return request
    inference = msgspec.structs.replace(
        request.inference,
        max_tokens=_max_tokens(request, body, options),
        top_k=_top_k(body.top_k),
        logit_bias=_logit_bias(body.logit_bias),
    )
    return msgspec.structs.replace(
        request,
        inference=inference,
        cache_key=_text(body.prompt_cache_key, "prompt_cache_key") or _text(body.user, "user"),
        retention=_text(body.prompt_cache_retention, "prompt_cache_retention"),
    )


def _max_tokens(request: ConversationRequest, body: ChatBody, options: ConversionOptions) -> int | None:
    value = body.max_completion_tokens
    if value is None or request.inference.max_tokens is not None:
        return request.inference.max_tokens
    if type(value) is not int:
        raise ConversionError("Invalid max_completion_tokens value, expected an integer")
    return sampling.max_tokens(value, request.conversation.thinking_mode, options)


def _top_k(value: Any) -> int | None:
    if value is not None and (type(value) is not int or value < -1):
        raise ConversionError("Invalid top_k value, expected an integer of at least -1")
    return value


def _logit_bias(value: Any) -> dict[int, float]:
    """Token id, as text, to a bias in [-100, 100]."""
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_BIASES:
        raise ConversionError(
            f"Invalid logit_bias value, expected an object of at most {_MAX_BIASES} token ids"
        )
    return {_token_id(token): _bias(bias) for token, bias in value.items()}


def _token_id(token: str) -> int:
    if not (token.isascii() and token.isdecimal() and len(token) < 10):
        raise ConversionError(f"Invalid logit_bias key {token!r}, expected a token id")
    return int(token)


def _bias(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -100 <= value <= 100:
        raise ConversionError("Invalid logit_bias value, the valid range of a bias is [-100, 100]")
    return float(value)


def _text(value: Any, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ConversionError(f"Invalid {name} value, expected a string")
    return value
