"""Whole answers: one, or many as they finish.

A stream gives pieces; most batch work wants completions. Many prompts are worked off by a bounded number of
readers, so that a million of them never are in memory, and the engine's queue always has a next one.
Rejected: a task group inside the generator, whose scope would span a `yield` and break the caller's scopes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable, Iterable, Iterator

from .best_of import likeliest
from .prompts import Prompt
from .stream import Stream
from .types import Completion, Delta, FinishReason, PromptLogprobs, SamplingParams, TokenLogprob, Usage

Answer = Callable[[int, Prompt], AsyncGenerator[Completion, None]]
"""The completions of the prompt with this number."""


class _Choice:
    """One choice while its deltas arrive."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] | None = None
        self.prompt_logprobs: PromptLogprobs | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        if delta.logprobs is not None:
            self.logprobs = self.logprobs or []
            self.logprobs += delta.logprobs
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs

    def completion(
        self, request_id: str | None, index: int, reason: FinishReason, usage: Usage
    ) -> Completion:
        return Completion(
            request_id=request_id,
            index=index,
            text="".join(self.texts),
            token_ids=tuple(self.token_ids),
            finish_reason=reason,
            usage=usage,
            logprobs=None if self.logprobs is None else tuple(self.logprobs),
            prompt_logprobs=self.prompt_logprobs,
        )


async def completions(stream: Stream, request_id: str | None) -> AsyncGenerator[Completion, None]:
    """The choices of one request, as they finish."""
    choices: dict[int, _Choice] = {}
    async with stream:
        async for delta in stream:
            choice = choices.setdefault(delta.index, _Choice())
            choice.add(delta)
            if delta.finish_reason is not None and delta.usage is not None:
                yield choice.completion(request_id, delta.index, delta.finish_reason, delta.usage)
                del choices[delta.index]


async def best_completions(
    stream: Stream, request_id: str | None, params: SamplingParams
) -> AsyncGenerator[Completion, None]:
    """The `n` likeliest choices of a request whose stream generates all `best_of`, once all have ended."""
    for completion in likeliest([c async for c in completions(stream, request_id)], params):
        yield completion


class _Source:
    """Prompts with their numbers, handed to whichever reader asks next."""

    def __init__(self, prompts: Iterable[Prompt] | AsyncIterable[Prompt]) -> None:
        self._prompts = aiter(prompts) if isinstance(prompts, AsyncIterable) else iter(prompts)
        self._numbers = itertools.count()
        self._asking = asyncio.Lock()  # an async generator must not be asked twice at once

    async def next(self) -> tuple[int, Prompt] | None:
        if isinstance(self._prompts, Iterator):
            for prompt in self._prompts:
                return next(self._numbers), prompt
            return None
        async with self._asking:
            async for prompt in self._prompts:
                return next(self._numbers), prompt
        return None


class _Failure:
    """An exception on its way through a queue of completions."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Ended:
    """A reader has no more prompts."""


_Queue = asyncio.Queue[Completion | _Failure | _Ended]


async def many_completions(
    prompts: Iterable[Prompt] | AsyncIterable[Prompt], answer: Answer, readers: int, progress: bool
) -> AsyncIterator[Completion]:
    """Completions of all prompts, labelled with the prompt's index, in the order in which they finish.

    The first error is raised and cancels the rest; so does leaving.
    """
    source = _Source(prompts)
    queue: _Queue = asyncio.Queue(readers)
    tasks = [asyncio.create_task(_read(source, answer, queue)) for _ in range(readers)]
    running = readers
    try:
        with _progress(progress) as advance:
            while running:
                match await queue.get():
                    case _Ended():
                        running -= 1
                    case _Failure(error=error):
                        raise error
                    case Completion() as completion:
                        advance()
                        yield completion
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _read(source: _Source, answer: Answer, queue: _Queue) -> None:
    try:
        while (numbered := await source.next()) is not None:
            index, prompt = numbered
            async with contextlib.aclosing(answer(index, prompt)) as finished:
                async for completion in finished:
                    await queue.put(completion)
    except Exception as error:
        await queue.put(_Failure(error))
    else:
        await queue.put(_Ended())


@contextlib.contextmanager
def _progress(shown: bool) -> Iterator[Callable[[], None]]:
    """A counter of finished completions on the terminal, or nothing."""
    if not shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("completions"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("completions", total=None)
        yield lambda: bar.advance(task)
