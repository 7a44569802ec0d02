"""Checks one submission against the limits of an open engine and resolves its parameters.

Everything that could go wrong with a request because of the request is found here, at once and with a typed
error to its caller; whatever passes can be scheduled and will end. The rows of `config.EDGE_VALUES` are the
specification.
"""

from __future__ import annotations

import math
import secrets

import numpy as np
import numpy.typing as npt

from .config import GREEDY_BELOW, RequestLimits
from .errors import (
    EmptyPromptError,
    InvalidParameterError,
    PromptNeverFitsError,
    PromptTooLongError,
    TokenOutOfVocabularyError,
)
from .token_edits import token_edits
from .types import ResolvedParams, SamplingParams


def validate(prompt: npt.NDArray[np.int32], params: SamplingParams, limits: RequestLimits) -> ResolvedParams:
    """Returns the parameters with every default decided.

    `prompt` is int32 [tokens]. Raises a subclass of `InvalidRequestError`. The output is capped by the room
    left in the context and in the pool of blocks, so a sequence that runs alone always reaches its end.
    """
    _check_domains(params, limits)
    room = _room(prompt, params, limits)
    asked = room if params.max_tokens is None else params.max_tokens
    eos = () if params.ignore_eos else limits.eos_token_ids
    end_ids = tuple(dict.fromkeys((*eos, *params.stop_token_ids)))
    if len(end_ids) > limits.max_stop_ids:
        raise InvalidParameterError(
            "stop_token_ids", params.stop_token_ids, f"at most {limits.max_stop_ids} ids"
        )
    min_output = min(params.min_tokens, room)
    return ResolvedParams(
        temperature=params.temperature if params.temperature >= GREEDY_BELOW else 0.0,
        top_k=params.top_k if 0 < params.top_k < limits.vocab_size else 0,
        top_p=params.top_p,
        seed=secrets.randbits(64) if params.seed is None else params.seed,
        max_output=min(asked, room),
        min_output=min_output,
        end_ids=end_ids,
        stop=params.stop,
        include_stop=params.include_stop,
        logprobs=-1 if params.logprobs is None else params.logprobs,
        detokenize=params.detokenize,
        min_p=params.min_p,
        edits=token_edits(params, limits, end_ids if min_output else ()),
        logprobs_processed=params.logprobs_of == "processed",
        draft_tokens=_most_drafts(params, limits),
        latency_target=params.latency_target,
        prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
    )


def _most_drafts(params: SamplingParams, limits: RequestLimits) -> int:
    asked = params.draft_tokens
    return limits.draft_tokens if asked is None else min(asked, limits.draft_tokens)


def _room(prompt: npt.NDArray[np.int32], params: SamplingParams, limits: RequestLimits) -> int:
    """Output tokens that fit behind the prompt; raises when the prompt itself does not fit."""
    length = len(prompt)
    if length == 0:
        raise EmptyPromptError
    outside = (prompt < 0) | (prompt >= limits.vocab_size)
    if outside.any():
        position = int(outside.argmax())
        raise TokenOutOfVocabularyError(position, int(prompt[position]), limits.vocab_size)
    least = 0 if params.max_tokens == 0 else 1
    if length + least > limits.context:
        raise PromptTooLongError(length, limits.context)
    capacity = limits.usable_blocks * limits.block_tokens - limits.lookahead
    if length + least > capacity:
        needed = -(-(length + least + limits.lookahead) // limits.block_tokens)
        raise PromptNeverFitsError(needed, limits.usable_blocks)
    return min(limits.context, capacity) - length


def _check_domains(params: SamplingParams, limits: RequestLimits) -> None:
    most = limits.max_logprobs
    checks: tuple[tuple[str, bool, str], ...] = (
        ("temperature", math.isfinite(params.temperature) and params.temperature >= 0, "finite and >= 0"),
        ("top_k", params.top_k >= -1, "-1 or 0 (off), or >= 1"),
        ("top_p", 0 < params.top_p <= 1, "in (0, 1]"),
        ("min_p", 0 <= params.min_p <= 1, "in [0, 1]"),
        ("n", params.n >= 1, ">= 1"),
        ("best_of", params.best_of is None or params.best_of >= params.n, "None, or at least n"),
        ("seed", params.seed is None or 0 <= params.seed < 2**64, "None, or 0 to 2**64 - 1"),
        ("max_tokens", params.max_tokens is None or params.max_tokens >= 0, "None or >= 0"),
        ("min_tokens", params.min_tokens >= 0, ">= 0"),
        (
            "min_tokens",
            params.max_tokens is None or params.min_tokens <= params.max_tokens,
            "at most max_tokens",
        ),
        ("logprobs", params.logprobs is None or 0 <= params.logprobs <= most, f"None, or 0 to {most}"),
        (
            "prompt_logprobs",
            params.prompt_logprobs is None or 0 <= params.prompt_logprobs <= most,
            f"None, or 0 to {most}",
        ),
        (
            "draft_tokens",
            params.draft_tokens is None or 0 <= params.draft_tokens <= limits.model_draft_tokens,
            f"None, or 0 to the model's {limits.model_draft_tokens}",
        ),
        (
            "latency_target",
            params.latency_target is None or 0 < params.latency_target < math.inf,
            "None, or finite and > 0",
        ),
        ("stop", not params.stop or params.detokenize, "empty when detokenize is off"),
        ("stop", "" not in params.stop, "strings that are not empty"),
        (
            "stop_token_ids",
            all(0 <= i < limits.vocab_size for i in params.stop_token_ids),
            "ids of the vocabulary",
        ),
    )
    for field, right, allowed in checks:
        if not right:
            raise InvalidParameterError(field, getattr(params, field), allowed)
