"""Unread output of one request: written by the output actor, read by one caller.

A reader may be slower than the device, or asleep. So what it has not read is kept as raw parts and merged,
and becomes one `Delta` only when the reader asks: a reader that falls behind gets larger deltas, holds at
most its own output, costs less than a quick one, and delays nobody. Rejected: a queue of ready deltas, which
grows by an object per step for a reader that sleeps.

Invariant: each choice ends once (by `finish`), or the whole channel does (by `fail`); what is written later
is dropped, what was written before is still read.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from stepahead.engine.errors import StreamInUseError
from stepahead.engine.logprobs import LOGPROB_FLOOR as LOGPROB_FLOOR
from stepahead.engine.logprobs import PromptLogprobs, floored
from stepahead.engine.model.runner import Float32s, Int32s
from stepahead.engine.types import Delta, FinishReason, TokenLogprob, Usage


class LogprobRows:
    """Log probabilities of the tokens of one part, as arrays until somebody reads them."""

    __slots__ = ("chosen", "top", "top_tokens")

    def __init__(self, chosen: Float32s, top: Float32s | None, top_tokens: Int32s | None) -> None:
        """`chosen` [tokens], the others [tokens, alternatives], best first."""
        self.chosen, self.top, self.top_tokens = chosen, top, top_tokens

    def decode(self, token_ids: Sequence[int]) -> list[TokenLogprob]:
        chosen = _finite(self.chosen)
        if self.top is None or self.top_tokens is None:
            return [TokenLogprob(token, value) for token, value in zip(token_ids, chosen, strict=True)]
        tops = [
            tuple(zip(ids, _finite(values), strict=True))
            for ids, values in zip(self.top_tokens.tolist(), self.top, strict=True)
        ]
        return [TokenLogprob(*row) for row in zip(token_ids, chosen, tops, strict=True)]


def _finite(values: Float32s) -> list[float]:
    plain: list[float] = floored(values).tolist()
    return plain


class _Choice:
    """What was not read yet of one choice."""

    __slots__ = ("ended", "finish_reason", "logprobs", "prompt_logprobs", "texts", "token_ids", "usage")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[tuple[LogprobRows, int]] = []  # with the number of tokens each covers
        self.finish_reason: FinishReason | None = None
        self.usage: Usage | None = None
        self.prompt_logprobs: PromptLogprobs | None = None
        self.ended = False

    def take(self, index: int) -> Delta:
        texts, token_ids = self.texts, self.token_ids
        delta = Delta(
            text=texts[0] if len(texts) == 1 else "".join(texts),
            token_ids=tuple(token_ids),
            index=index,
            logprobs=self._take_logprobs() if self.logprobs else None,
            finish_reason=self.finish_reason,
            usage=self.usage,
            prompt_logprobs=self.prompt_logprobs,
        )
        texts.clear()
        token_ids.clear()
        self.prompt_logprobs = None
        return delta

    def _take_logprobs(self) -> tuple[TokenLogprob, ...]:
        decoded: list[TokenLogprob] = []
        for rows, count in self.logprobs:
            decoded += rows.decode(self.token_ids[len(decoded) : len(decoded) + count])
        self.logprobs.clear()
        return tuple(decoded)


class DeltaChannel:
    """One writer, one reader, on one loop."""

    def __init__(self, choices: int) -> None:
        self._choices = [_Choice() for _ in range(choices)]
        self._running = choices
        self._news: deque[int] = deque()  # choices with something unread, in order of their first unread part
        self._error: Callable[[], Exception] | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will be written."""
        return not self._running

    @property
    def unread_tokens(self) -> int:
        """Tokens of all choices that were not read yet."""
        return sum(len(choice.token_ids) for choice in self._choices)

    @property
    def in_use(self) -> bool:
        """Whether a task is waiting in `read`."""
        return self._reader is not None

    # The writer's side.

    def write(
        self, index: int, text: str, token_ids: Sequence[int], logprobs: LogprobRows | None = None
    ) -> bool:
        """Adds output of a choice. Returns whether it joined output that was still unread."""
        choice = self._choices[index]
        if choice.ended:
            return False
        late = bool(choice.token_ids or choice.texts)
        if text:
            choice.texts.append(text)
        choice.token_ids += token_ids
        if logprobs is not None:
            choice.logprobs.append((logprobs, len(token_ids)))
        if late:
            return True
        self._news.append(index)
        if self._reader is not None:
            self._wake()
        return False

    def describe_prompt(self, index: int, logprobs: PromptLogprobs) -> None:
        """Goes with the next delta of a choice; no news of its own."""
        self._choices[index].prompt_logprobs = logprobs

    def finish(self, index: int, reason: FinishReason, usage: Usage) -> None:
        """Ends a choice; its last delta, with whatever is unread, carries the reason and the usage."""
        choice = self._choices[index]
        if choice.ended:
            return
        if not (choice.token_ids or choice.texts):
            self._news.append(index)
        choice.finish_reason, choice.usage, choice.ended = reason, usage, True
        self._running -= 1
        self._wake()

    def fail(self, make_error: Callable[[], Exception]) -> None:
        """Ends all choices that still run: after what is unread, the reader gets the error.

        It is made when raised, since one exception object raised in many tasks would mix their tracebacks.
        """
        if self._running:
            for choice in self._choices:
                choice.ended = True
            self._running, self._error = 0, make_error
            self._wake()

    # The reader's side: `await read()`, or the same without a coroutine of its own, as `Stream` does.

    async def read(self) -> Delta | None:
        """The unread output of one choice, waited for; None after the last delta of the last choice.

        Raises the error the request or the engine ended with, once; and `StreamInUseError` when another task
        is waiting here.
        """
        if not self.ready:
            try:
                await self.wait()
            finally:
                self.waited()
        return self.take()

    @property
    def ready(self) -> bool:
        """Whether `take` has something to say. Raises `StreamInUseError` when another task is waiting."""
        if self._reader is not None:
            raise StreamInUseError
        return bool(self._news) or not self._running

    def wait(self) -> asyncio.Future[None]:
        """Done once `take` has something to say. However the waiting ends, `waited` must follow."""
        self._reader = asyncio.Future()
        return self._reader

    def waited(self) -> None:
        self._reader = None

    def take(self) -> Delta | None:
        """What `read` returns once `ready`."""
        if self._news:
            index = self._news.popleft()
            return self._choices[index].take(index)
        if self._error is not None:
            make_error, self._error = self._error, None
            raise make_error()
        return None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
