"""What a client must hear, from its request alone: the hashed model's oracle, then the rules for text.

The rules are written as plainly as possible, over whole outputs and without the engine's matcher: the first
token at which the text holds a stop string is the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache

import msgspec
import numpy as np

from stepahead import FinishReason
from stepahead.actors.delta_channel import LOGPROB_FLOOR
from stepahead.engine.config import RequestLimits
from stepahead.engine.model.hashed import HashedModel, Solo, solo
from stepahead.engine.sampling.commit import FAILED, STOP
from stepahead.engine.types import Request, ResolvedParams, TokenLogprob
from stepahead.engine.validation import validate
from tests.unit.text_tokenizer import small_tokenizer

from .script import Client, Model


class Told(msgspec.Struct, frozen=True):
    """One choice left to finish. `reason` None: it fails, there is no finite logit after `tokens`."""

    tokens: tuple[int, ...]
    text: str
    reason: FinishReason | None
    output_tokens: int  # as `Usage` counts: hidden end ids too
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]
    sampled: tuple[int, ...]  # what the model says, end id included, stop strings ignored
    prompt: tuple[TokenLogprob, ...] = ()  # of the prompt's tokens, where the first choice was asked for them


def told(
    model: Model,
    client: Client,
    limits: RequestLimits,
    most: Mapping[int, int] | None = None,
    *,
    rejection: bool = False,
) -> tuple[Told, ...]:
    """By choice. Raises `InvalidRequestError` as the engine must at submission.

    `most`: tokens of a choice that are wanted, where not all are: most clients leave early, and the oracle's
    time is most of a verdict's.
    """
    prompt = np.array(client.prompt, dtype=np.int32)
    params = validate(prompt, client.params(), limits)
    answers = []
    for choice in range(client.n):
        wanted = params.max_output if most is None else most.get(choice, params.max_output)
        cut = msgspec.structs.replace(params, max_output=min(wanted, params.max_output))
        if choice:
            cut = msgspec.structs.replace(cut, prompt_logprobs=-1)
        answers.append(_shown(_solo(model, prompt.tobytes(), cut, choice, rejection), client))
    return tuple(answers)


@lru_cache(maxsize=256)
def _solo(model: Model, prompt: bytes, params: ResolvedParams, choice: int, rejection: bool) -> Solo:
    request = Request(
        key=1 + choice,
        group=1,
        choice=choice,
        leader=1,
        label=None,
        prompt=prompt,
        params=params,
        priority=0,
        arrival=0.0,
        deadline=None,
        salt=b"",
    )
    return solo(_hashed(model), request, rejection=rejection)


@cache
def _hashed(model: Model) -> HashedModel:
    return model.hashed()


def text_of(tokens: tuple[int, ...]) -> str:
    """Decoded at once; special tokens have no text, half a character is one U+FFFD."""
    table = small_tokenizer().token_bytes.visible_pieces
    return b"".join(table[token] for token in tokens).decode(errors="replace")


def _shown(answer: Solo, client: Client) -> Told:
    ended = answer.finish == STOP
    tokens = answer.tokens[:-1] if ended and not client.include_stop else answer.tokens
    reason = FinishReason.STOP if ended else None if answer.finish == FAILED else FinishReason.LENGTH
    count, text = len(answer.tokens), text_of(tokens) if client.detokenize else ""
    for used in range(client.min_tokens + 1, len(tokens) + 1) if client.stop else ():
        start = text_of(tokens[: client.min_tokens])
        match = _first_stop(text_of(tokens[client.min_tokens : used]), client)
        if match is not None:
            text, reason, count, tokens = start + match, FinishReason.STOP, used, tokens[:used]
            break
    logprobs = tuple(max(value, LOGPROB_FLOOR) for value in answer.logprobs[: len(tokens)])
    top = tuple(
        tuple((token, max(value, LOGPROB_FLOOR)) for token, value in row) for row in answer.top[: len(tokens)]
    )
    return Told(tokens, text, reason, count, logprobs, top, answer.tokens, answer.prompt)


def _first_stop(text: str, client: Client) -> str | None:
    """The text up to the earliest end of a stop string (with it, if it is to be shown); None without one."""
    for end in range(1, len(text) + 1):
        for stop in client.stop:
            if text[:end].endswith(stop):
                return text[:end] if client.include_stop else text[: end - len(stop)]
    return None
