"""Generate more choices than asked for and keep the likeliest.

Which choice is best is known only when all have ended, so this is a rule about whole answers and lives where
answers are whole; a stream has already told its tokens. Choices are compared by the mean logprob of their
tokens: a sum would prefer whoever stops first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from .types import Completion, SamplingParams


def widened(params: SamplingParams | None) -> SamplingParams | None:
    """Parameters that generate all `best_of` choices with logprobs; None: there is nothing to choose."""
    if params is None or not isinstance(params.best_of, int) or not isinstance(params.n, int):
        return None
    if params.best_of <= params.n:
        return None
    logprobs = 0 if params.logprobs is None else params.logprobs
    return msgspec.structs.replace(params, n=params.best_of, best_of=None, logprobs=logprobs)


def likeliest(completions: Iterable[Completion], params: SamplingParams) -> list[Completion]:
    """The `params.n` best choices, best first, numbered anew; the earlier choice first among equals."""
    completions = list(completions)
    prompt = next((c.prompt_logprobs for c in completions if c.prompt_logprobs is not None), None)
    ranked = sorted(completions, key=lambda completion: (-_mean(completion), completion.index))
    kept = ranked[: params.n]
    if params.logprobs is None:
        kept = [msgspec.structs.replace(completion, logprobs=None) for completion in kept]
    return [
        msgspec.structs.replace(completion, index=index, prompt_logprobs=None if index else prompt)
        for index, completion in enumerate(kept)
    ]


def _mean(completion: Completion) -> float:
    """A choice without a token says nothing wrong, and nothing."""
    entries = completion.logprobs
    return math.fsum(entry.logprob for entry in entries) / len(entries) if entries else -math.inf
