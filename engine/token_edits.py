"""Checks and resolves a request's edits of single tokens: penalties, biases, bans, allowed ids, bad words.

Written in a request these overlap (an id may be biased, banned and a bad word of length one); resolved, each
id has one bias, of which minus infinity is the ban, so that the device adds one list and never has to know
an order. Rejected: clamping values outside their domain, which answers a question nobody asked.

Invariant: what passes leaves at least one token to draw at every position, whatever came before.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from .config import RequestLimits
from .errors import InvalidParameterError
from .types import SamplingParams, TokenEdits

_PENALTY = 2.0
_BIAS = 100.0
_REPETITION = (0.01, 100.0)
"""Bounds as in the field. Beyond them a small temperature overflows float32 for no further effect."""

LONGEST_WORD = 16
"""Ids of a bad word: the device keeps so many recent tokens less one per word, for every slot."""


def token_edits(
    params: SamplingParams, limits: RequestLimits, early_bans: Collection[int]
) -> TokenEdits | None:
    """The resolved edits, None if there are none; `early_bans` are ids that `min_tokens` bans.

    Raises `InvalidParameterError`.
    """
    _check_numbers(params)
    bias = dict(params.logit_bias or {})
    banned = (*params.banned_token_ids, *(word[0] for word in params.bad_words if len(word) == 1))
    _check_ids("logit_bias", bias, limits)
    _check_ids("banned_token_ids", params.banned_token_ids, limits)
    _check_ids("bad_words", [token for word in params.bad_words for token in word], limits)
    bias |= dict.fromkeys(banned, -math.inf)
    allowed = _allowed(params, limits, bias)
    word_ends = [word[-1] for word in params.bad_words]
    _check_something_remains(allowed, bias, limits, (*early_bans, *word_ends))
    edits = TokenEdits(
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
        repetition=params.repetition_penalty,
        bias=tuple(sorted(bias.items())),
        allowed=allowed,
        bad_words=tuple(dict.fromkeys(word for word in params.bad_words if len(word) > 1)),
    )
    return None if edits == TokenEdits() else edits


def _check_numbers(params: SamplingParams) -> None:
    for field in ("presence_penalty", "frequency_penalty"):
        value = getattr(params, field)
        if not -_PENALTY <= value <= _PENALTY:
            raise InvalidParameterError(field, value, f"{-_PENALTY:g} to {_PENALTY:g}")
    low, high = _REPETITION
    if not low <= params.repetition_penalty <= high:
        raise InvalidParameterError(
            "repetition_penalty", params.repetition_penalty, f"{low:g} to {high:g}; 1 is off"
        )
    for token, value in (params.logit_bias or {}).items():
        if not -_BIAS <= value <= _BIAS:
            raise InvalidParameterError(
                "logit_bias", {token: value}, f"{-_BIAS:g} to {_BIAS:g}; banned_token_ids bans"
            )
    if any(not word for word in params.bad_words):
        raise InvalidParameterError("bad_words", params.bad_words, "words that are not empty")
    longest = max(map(len, params.bad_words), default=0)
    if longest > LONGEST_WORD:
        raise InvalidParameterError("bad_words", f"a word of {longest} ids", f"at most {LONGEST_WORD}")


def _check_ids(field: str, ids: Collection[int], limits: RequestLimits) -> None:
    if len(ids) > limits.max_listed_ids:
        raise InvalidParameterError(
            field, f"{len(ids)} ids", f"at most max_listed_ids = {limits.max_listed_ids}"
        )
    for token in ids:
        if not 0 <= token < limits.vocab_size:
            raise InvalidParameterError(field, token, f"ids of the vocabulary, 0 to {limits.vocab_size - 1}")


def _allowed(params: SamplingParams, limits: RequestLimits, bias: dict[int, float]) -> tuple[int, ...]:
    """Each allowed id once, without the banned ones; empty: all are allowed."""
    if params.allowed_token_ids is None:
        return ()
    _check_ids("allowed_token_ids", params.allowed_token_ids, limits)
    allowed = _without_banned(dict.fromkeys(params.allowed_token_ids), bias)
    if not allowed:
        raise InvalidParameterError(
            "allowed_token_ids", params.allowed_token_ids, "at least one id that is not banned; None for all"
        )
    return allowed


def _without_banned(ids: Iterable[int], bias: dict[int, float]) -> tuple[int, ...]:
    return tuple(token for token in ids if bias.get(token, 0.0) != -math.inf)


def _check_something_remains(
    allowed: tuple[int, ...], bias: dict[int, float], limits: RequestLimits, early_bans: Collection[int]
) -> None:
    """`early_bans` hold what may be banned at some position: end ids before min_tokens, ends of bad words."""
    if allowed and set(allowed) <= set(early_bans):
        raise InvalidParameterError(
            "allowed_token_ids", allowed, "an id that ends no bad word, nor, with min_tokens, the output"
        )
    banned = {token for token, value in bias.items() if value == -math.inf}
    if len(banned | set(early_bans)) >= limits.vocab_size:
        raise InvalidParameterError(
            "banned_token_ids", f"{len(banned)} ids", "at least one id must remain to be drawn"
        )
