"""Turns committed tokens into what callers read, and ends every stream exactly once.

A stream can end by a commit, by its caller, by a deadline, by a stop string that only this actor can see, or
by an error; these race, and two of them may well happen. Whoever is first here decides, since a sequence
leaves `_live` when it ends and later news of its key finds nothing. Rejected: letting the scheduler end
streams, which would need a second round trip for stop strings and a rule for every pair of ends.

Invariant: a key is in `_live` exactly while its choice has had no terminal event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from stepahead.engine.errors import NotFiniteError, RequestFailedError, SlowReaderError
from stepahead.engine.sampling.commit import FAILED, RUNNING, STOP, StepCommit
from stepahead.engine.text.output_text import OutputText
from stepahead.engine.text.tokenizer import Tokenizer
from stepahead.engine.types import FinishReason, Request, Usage

from .actor import Actor, Address
from .delta_channel import DeltaChannel, LogprobRows
from .messages import RequestCancelled, SequencesAdmitted, SequencesClosed, StepCommitted, StreamOpened

Accepted = StreamOpened | StepCommitted | SequencesAdmitted | SequencesClosed

ROWS_AT_ONCE = 64
"""Sequences of a commit served before others run: 512 streams that end in one step do not freeze the loop."""


class OutputTotals:
    """What all streams consumed since the engine opened."""

    def __init__(self) -> None:
        self.steps = self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.drafted_tokens = self.accepted_tokens = self.preemptions = 0
        self.finished = self.aborted = self.failed = self.coalesced_deltas = 0


class _Live:
    """One sequence whose caller still waits for its end."""

    __slots__ = (
        "accepted",
        "admitted_at",
        "cached",
        "channel",
        "drafted",
        "first_token_at",
        "output",
        "preemptions",
        "request",
        "siblings",
        "text",
    )

    def __init__(self, request: Request, siblings: tuple[int, ...], channel: DeltaChannel, text: OutputText):
        self.request, self.siblings, self.channel, self.text = request, siblings, channel, text
        self.output = self.cached = self.drafted = self.accepted = self.preemptions = 0
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None

    def usage(self, now: float) -> Usage:
        arrival, first = self.request.arrival, self.first_token_at
        return Usage(
            prompt_tokens=len(self.request.prompt) // 4,
            cached_tokens=self.cached,
            output_tokens=self.output,
            drafted_tokens=self.drafted,
            accepted_tokens=self.accepted,
            preemptions=self.preemptions,
            queue_seconds=(now if self.admitted_at is None else self.admitted_at) - arrival,
            first_token_seconds=None if first is None else first - arrival,
        )


class Output(Actor[Accepted]):
    """Owns the streams, their text, their usage, and the terminal event."""

    name = "output"
    accepts = (StreamOpened, StepCommitted, SequencesAdmitted, SequencesClosed)

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        slow_reader: Literal["coalesce", "abort"],
        unread_tokens: int,
        capacity: int,
    ) -> None:
        """Without a tokenizer there is no text. Made on the loop it will run on."""
        super().__init__(capacity)
        self._tokenizer = tokenizer
        self._most_unread = unread_tokens if slow_reader == "abort" else None
        self._clock = asyncio.get_running_loop().time
        self._live: dict[int, _Live] = {}
        self._stopped: list[int] = []  # ended here while the scheduler still runs them
        self.totals = OutputTotals()

    def connect(self, scheduler: Address[RequestCancelled]) -> None:
        self._to_scheduler = scheduler

    @property
    def live(self) -> int:
        """Sequences without a terminal event."""
        return len(self._live)

    async def handle(self, message: Accepted) -> None:
        match message:
            case StepCommitted(commit=commit):
                await self._committed(commit)
            case StreamOpened(requests=requests, channel=channel):
                self._opened(requests, channel)
            case SequencesAdmitted():
                self._admitted(message)
            case SequencesClosed(sequence_keys=keys, reason=reason, error=error):
                for key in keys:
                    self._closed(key, reason, error)
        self._tell_scheduler()

    def fail_all(self, make_error: Callable[[], Exception]) -> None:
        """Ends every stream with an error. For the engine, once this actor has ended."""
        for live in self._live.values():
            live.channel.fail(make_error)
        self.totals.failed += len(self._live)
        self._live.clear()

    def _opened(self, requests: Sequence[Request], channel: DeltaChannel) -> None:
        keys = tuple(request.key for request in requests)
        for request in requests:
            has_text = self._tokenizer is not None and request.params.detokenize
            detokenizer = self._tokenizer.detokenizer() if self._tokenizer and has_text else None
            text = OutputText(detokenizer, request.params)
            self._live[request.key] = _Live(request, keys, channel, text)
            self.totals.prompt_tokens += len(request.prompt) // 4

    def _admitted(self, message: SequencesAdmitted) -> None:
        now = self._clock()
        rows = zip(message.sequence_keys, message.cached_tokens, message.resumed, strict=True)
        for key, cached, resumed in rows:
            live = self._live.get(key)
            if resumed:
                self.totals.preemptions += 1
            else:
                self.totals.cached_tokens += cached
            if live is None:
                continue
            if resumed:
                live.preemptions += 1
            else:
                live.cached, live.admitted_at = cached, now

    async def _committed(self, commit: StepCommit) -> None:
        await asyncio.sleep(0)  # whoever plans and launches goes first: the device waits for them
        self.totals.steps += 1
        now = self._clock()
        speaking = np.flatnonzero((commit.counts > 0) | (commit.finish != RUNNING)).tolist()
        keys = commit.layout.sequence_keys.tolist()
        for served, row in enumerate(speaking, 1):
            live = self._live.get(keys[row])
            if live is not None:
                self._guarded(live, commit, row, now)
            if served % ROWS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def _guarded(self, live: _Live, commit: StepCommit, row: int, now: float) -> None:
        """An error in one request's text is that request's error."""
        try:
            self._row(live, commit, row, now)
        except Exception as error:
            failure = RequestFailedError("output")
            failure.__cause__ = error
            self._fail(live, failure, at_scheduler=True)

    def _row(self, live: _Live, commit: StepCommit, row: int, now: float) -> None:
        finish, count = int(commit.finish[row]), int(commit.counts[row])
        if finish == FAILED:
            position = len(live.request.prompt) // 4 + live.output
            self._fail(live, NotFiniteError(position), at_scheduler=False)
            return
        self._count(live, commit, row, count, now)
        hidden = finish == STOP and not live.request.params.include_stop
        token_ids = commit.tokens[row, : count - hidden].tolist()
        text, used = live.text.push(token_ids)
        late = False
        if used:
            logprobs = _logprobs(commit, row, used, live.request.params.logprobs)
            late = live.channel.write(live.request.choice, text, token_ids[:used], logprobs)
            self.totals.coalesced_deltas += late
        if live.text.stopped:
            self._uncount(live, token_ids[used:], hidden)
            self._end(live, FinishReason.STOP, now)
            if finish == RUNNING:
                self._stopped.append(live.request.key)
        elif finish != RUNNING:
            self._end(live, FinishReason.STOP if finish == STOP else FinishReason.LENGTH, now)
        elif late and self._most_unread is not None and live.channel.unread_tokens >= self._most_unread:
            self._fail(live, SlowReaderError(live.channel.unread_tokens), at_scheduler=True)

    def _count(self, live: _Live, commit: StepCommit, row: int, count: int, now: float) -> None:
        drafted, accepted = int(commit.drafted[row]), int(commit.accepted[row])
        live.output += count
        live.drafted += drafted
        live.accepted += accepted
        totals = self.totals
        totals.output_tokens += count
        totals.drafted_tokens += drafted
        totals.accepted_tokens += accepted
        if live.first_token_at is None and count:
            live.first_token_at = now

    def _uncount(self, live: _Live, behind: Sequence[int], hidden: bool) -> None:
        """Tokens behind a stop string were sampled, but are no output."""
        surplus = len(behind) + hidden
        live.output -= surplus
        self.totals.output_tokens -= surplus

    def _closed(self, key: int, reason: FinishReason | None, error: Exception | None) -> None:
        live = self._live.get(key)
        if live is None:
            return
        if reason is not None:
            self._end(live, reason, self._clock())
        elif error is not None:
            self._fail(live, error, at_scheduler=True)

    def _end(self, live: _Live, reason: FinishReason, now: float) -> None:
        tail = live.text.finish()
        if tail:
            live.channel.write(live.request.choice, tail, ())
        live.channel.finish(live.request.choice, reason, live.usage(now))
        del self._live[live.request.key]
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self.totals.finished += 1
        else:
            self.totals.aborted += 1

    def _fail(self, live: _Live, error: Exception, *, at_scheduler: bool) -> None:
        """Ends all choices of a request; with `at_scheduler`, this one still runs there."""
        live.channel.fail(lambda: error)
        for key in live.siblings:
            if self._live.pop(key, None) is None:
                continue
            self.totals.failed += 1
            if at_scheduler or key != live.request.key:
                self._stopped.append(key)

    def _tell_scheduler(self) -> None:
        if self._stopped:
            self._to_scheduler.post(RequestCancelled(sequence_keys=tuple(self._stopped), reason=None))
            self._stopped.clear()


def _logprobs(commit: StepCommit, row: int, count: int, wanted: int) -> LogprobRows | None:
    """Copies, so that one slow reader does not keep the arrays of a whole step alive."""
    if wanted < 0 or commit.logprobs is None:
        return None
    chosen = commit.logprobs[row, :count].copy()
    if wanted == 0 or commit.top_logprobs is None or commit.top_tokens is None:
        return LogprobRows(chosen, None, None)
    top = commit.top_logprobs[row, :count, :wanted].copy()
    return LogprobRows(chosen, top, commit.top_tokens[row, :count, :wanted].copy())
