"""The oracle: what one request's text must be, computed alone, with lists and without any cache.

Nothing here knows of blocks, slots, steps, drafts or other requests; it reads as the definition in
`model.py`. Whatever the engine does to a request, its tokens must be a prefix of these (all of them, if it
was left to finish).
"""

from __future__ import annotations

import msgspec
import numpy as np

from stepahead.engine.sampling.commit import FAILED, LENGTH, STOP
from stepahead.engine.types import Request, TokenLogprob

from ..runner import NO_TOKEN, Float32s, Int32s
from .choosing import RowParams, best, choose, log_softmax, processed
from .edits import SequenceEdits, edits_of_request
from .model import FACTOR, MASK, NGRAM, POSITION, TOKEN, HashedModel, mix_int
from .rejection import guess, verify


class Solo(msgspec.Struct, frozen=True):
    """A request's whole output. `tokens` include the end id; `finish` is a code of `sampling/commit.py`."""

    tokens: tuple[int, ...]
    finish: int
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]  # per token, (id, logprob) best first; () without
    prompt: tuple[TokenLogprob, ...] = ()  # of every prompt token after the first, where asked for


def solo(model: HashedModel, request: Request, *, rejection: bool = False) -> Solo:
    """Runs a validated request to its end; with `rejection` in windows of all the drafts it may have.

    Greedy requests do not notice the difference.
    """
    params, history = request.params, _History(model)
    prompt = np.frombuffer(request.prompt, dtype=np.int32).tolist()
    digest = 0
    digests_of_prompt = []
    for token in prompt:
        digest = history.append(token)
        digests_of_prompt.append(digest)
    edits = None if params.edits is None else edits_of_request(params.edits, prompt)
    tokens: list[int] = []
    logprobs: list[float] = []
    top: list[tuple[tuple[int, float], ...]] = []
    finish = int(LENGTH)
    window = _Window(model, request) if rejection and params.temperature > 0 else None
    while len(tokens) < params.max_output:
        digests = np.array([digest], dtype=np.uint64)
        if not model.finite(digests)[0]:
            finish = int(FAILED)
            break
        logits = model.logits(digests)
        row, output = _row_params(request, edits), np.array([len(tokens)], dtype=np.int32)
        token = window.draw(logits, row, output) if window else int(choose(logits, row, output)[0])
        tokens.append(token)
        if params.logprobs >= 0:
            scores = log_softmax(processed(logits, row, output) if params.logprobs_processed else logits)
            values, ids = best(scores, params.logprobs)
            logprobs.append(float(scores[0, token]))
            top.append(tuple(zip(ids[0].tolist(), values[0].tolist(), strict=True)))
        if token in params.end_ids:
            finish = int(STOP)
            break
        edits = None if edits is None else edits.assuming([token])
        if window is not None:
            window.guess_if_empty(history, token, edits, len(tokens))
        digest = history.append(token)
    reported = _prompt_scores(model, digests_of_prompt, prompt, params.prompt_logprobs)
    return Solo(tuple(tokens), finish, tuple(logprobs), tuple(top), reported)


def _prompt_scores(
    model: HashedModel, digests: list[int], prompt: list[int], alternatives: int
) -> tuple[TokenLogprob, ...]:
    if alternatives < 0:
        return ()
    entries = []
    for digest, token in zip(digests[:-1], prompt[1:], strict=True):
        scores = log_softmax(model.logits(np.array([digest], dtype=np.uint64)))
        values, ids = best(scores, alternatives)
        top = tuple(zip(ids[0].tolist(), values[0].tolist(), strict=True))
        entries.append(TokenLogprob(token, float(scores[0, token]), top))
    return tuple(entries)


class _Window:
    """Drafts that still stand in line, and what they were drawn from: a list each."""

    def __init__(self, model: HashedModel, request: Request) -> None:
        self._model, self._request = model, request
        self._line: list[tuple[int, Float32s]] = []
        self._open = False  # whether the next token closes a window that has drafts or had some

    def draw(self, logits: Float32s, row: RowParams, output: Int32s) -> int:
        """The next token, by the first draft in line if there is one."""
        drafts, from_what = np.empty(0, dtype=np.int32), np.empty((0, logits.shape[1]), dtype=np.float32)
        if self._line:
            draft, own = self._line.pop(0)
            drafts, from_what = np.array([draft], dtype=np.int32), own
            twice = np.concatenate([logits, logits])  # a row for the draft, one for a token nobody takes
            stands, token = verify(twice, row.only([0, 0]), np.repeat(output, 2), drafts, from_what)
            self._open = stands == 1
            return draft if self._open else token
        self._open = False
        return verify(logits, row, output, drafts, from_what)[1]

    def guess_if_empty(
        self, history: _History, newest: int, edits: SequenceEdits | None, output: int
    ) -> None:
        """Behind a window's last token: drafts for what follows `newest`, which is not in `history` yet."""
        if self._open:
            return
        self._line, ahead, feed = [], history.copy(), newest
        for place in range(min(self._model.draft_tokens, self._request.params.draft_tokens)):
            digests = np.array([ahead.append(feed)], dtype=np.uint64)
            assumed = None if edits is None else edits.assuming([draft for draft, _ in self._line])
            row = _row_params(self._request, assumed)
            position = np.array([output + place], dtype=np.int32)
            drafts, own = guess(self._model, digests, row, position, place)
            feed = int(drafts[0])
            self._line.append((feed, own))


class _History:
    """Everything a sequence has seen, as plain lists of Python integers."""

    def __init__(self, model: HashedModel) -> None:
        self._model = model
        self._weights: list[int] = model.weights.tolist()
        self._tokens: list[int] = []
        self._windows: list[int] = []
        self._entry = self._everything = 0

    def copy(self) -> _History:
        other = _History(self._model)
        other._tokens, other._windows = [*self._tokens], [*self._windows]
        other._entry, other._everything = self._entry, self._everything
        return other

    def append(self, token: int) -> int:
        """Takes the next token and returns the digest of its row."""
        position = len(self._tokens)
        self._tokens.append(token)
        before = self._windows[-1] if self._windows else 0
        content = mix_int((token * TOKEN + position * POSITION) & MASK)
        self._windows.append((FACTOR * before + content) & MASK)
        hidden = mix_int((mix_int(self._recent()) + self._ngram()) & MASK)
        self._entry = (FACTOR * self._entry + hidden) & MASK
        self._everything = (self._everything + self._entry * self._weights[position]) & MASK
        return mix_int((mix_int(self._everything) + hidden) & MASK)

    def _recent(self) -> int:
        first = max(0, len(self._windows) - self._model.window)
        terms = zip(self._windows[first:], self._weights[first:], strict=False)
        return sum(entry * weight for entry, weight in terms) & MASK

    def _ngram(self) -> int:
        """The newest token first; before the start stands NO_TOKEN, wrapped."""
        last = [*reversed(self._tokens[-len(NGRAM) :])]
        last += [NO_TOKEN] * (len(NGRAM) - len(last))
        return sum((token & MASK) * factor for token, factor in zip(last, NGRAM, strict=True)) & MASK


def _row_params(request: Request, edits: SequenceEdits | None) -> RowParams:
    params = request.params
    return RowParams(
        temperature=np.array([params.temperature], dtype=np.float32),
        top_k=np.array([params.top_k], dtype=np.int32),
        top_p=np.array([params.top_p], dtype=np.float32),
        min_p=np.array([params.min_p], dtype=np.float32),
        seed=np.array([params.seed], dtype=np.uint64),
        choice=np.array([request.choice], dtype=np.int32),
        min_output=np.array([params.min_output], dtype=np.int32),
        end_ids=np.array([params.end_ids or (NO_TOKEN,)], dtype=np.int32),
        edits=(edits,),
    )
