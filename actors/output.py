"""Turns committed tokens into what callers read, and ends every stream exactly once.

A stream can end by a commit, by its caller, by a deadline, by a stop string that only this actor can see, or
by an error; these race, and two of them may well happen. Whoever is first here decides, since a sequence
leaves `_live` when it ends and later news of its key finds nothing. Rejected: letting the scheduler end
streams, which would need a second round trip for stop strings and a rule for every pair of ends.

A step costs Python once per stream, which is most of the host's time. So the usual row, of a sequence that
goes on and wants its text and no more, has a short way (`_plain_row`), and totals are added up on demand.

Invariant: a key is in `_live` exactly while its choice has had no terminal event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal

from stepahead.engine.errors import NotFiniteError, RequestFailedError, SlowReaderError
from stepahead.engine.sampling import commit as codes
from stepahead.engine.sampling.commit import StepCommit
from stepahead.engine.scheduling.delivery import MOST
from stepahead.engine.text.output_text import OutputText
from stepahead.engine.text.tokenizer import Tokenizer
from stepahead.engine.types import FinishReason, Request

from .actor import Actor, Address
from .delta_channel import DeltaChannel
from .live_sequence import CommitRows, LiveSequence
from .messages import (
    DrainRequested,
    RequestCancelled,
    SequencesAdmitted,
    SequencesClosed,
    StepCommitted,
    StreamOpened,
)
from .output_totals import OutputTotals

Accepted = StreamOpened | StepCommitted | SequencesAdmitted | SequencesClosed | DrainRequested

RUNNING, STOP, FAILED = int(codes.RUNNING), int(codes.STOP), int(codes.FAILED)
"""Plain integers: comparing with a numpy scalar costs as much as the rest of a row's bookkeeping."""

AT_ONCE, MOST_AT_ONCE = 64, 512
"""Rows, of one step or of several served together (which takes less than as many single ones), before others
run: 512 streams must delay neither the next launch nor the loop. The larger number is for a long backlog."""

TURNS = 16
"""Turns of the loop for which streams give way at a time: more than lie between the end of a step and the
next launches, and an end even where callers submit without a pause."""

BACKLOG = 4
"""Waiting messages for which streams take one share more, and give way that much less. So a busy host divides
its time, and planning, which waits for nobody here, is slowed down before the backlog grows without end."""

TOGETHER = 3 * MOST
"""Steps served together at most."""


class Output(Actor[Accepted]):
    """Owns the streams, their text, their usage, and the terminal event."""

    name = "output"
    accepts = (StreamOpened, StepCommitted, SequencesAdmitted, SequencesClosed, DrainRequested)

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        draft_tokens: int,
        slow_reader: Literal["coalesce", "abort"],
        unread_tokens: int,
        capacity: int,
    ) -> None:
        """Without a tokenizer there is no text. Made on the loop it will run on."""
        super().__init__(capacity)
        self._tokenizer, self._draft_tokens = tokenizer, draft_tokens
        self._most_unread = unread_tokens if slow_reader == "abort" else None
        self._clock = asyncio.get_running_loop().time
        self._live: dict[int, LiveSequence] = {}
        self._stopped: list[int] = []  # ended here while the scheduler still runs them
        self._totals = OutputTotals()  # of the sequences that ended, and what was not a sequence's

    def connect(
        self, scheduler: Address[RequestCancelled], next_step_waits: Callable[[], bool] = lambda: False
    ) -> None:
        """`next_step_waits`: whether somebody has a message through whose hands the next step goes."""
        self._to_scheduler, self._next_step_waits = scheduler, next_step_waits

    @property
    def totals(self) -> OutputTotals:
        """Up to now, sequences that run included."""
        return self._totals.with_those_that_run(self._live.values())

    @property
    def live(self) -> int:
        """Sequences without a terminal event."""
        return len(self._live)

    async def handle(self, message: Accepted) -> None:
        match message:
            case StepCommitted(commit=commit):
                await self._committed([commit, *self._later_steps(commit)])
            case StreamOpened(requests=requests, channel=channel):
                self._opened(requests, channel)
            case SequencesAdmitted():
                self._admitted(message)
            case SequencesClosed(sequence_keys=keys, reason=reason, error=error):
                began = self.trace.clock()
                for key in keys:
                    self._closed(key, reason, error)
                self.trace.span("output.close", began)
            case DrainRequested(reply=reply):
                reply.send(None)
        self._tell_scheduler()

    def _opened(self, requests: Sequence[Request], channel: DeltaChannel) -> None:
        began, keys = self.trace.clock(), tuple(request.key for request in requests)
        for request in requests:
            has_text = self._tokenizer is not None and request.params.detokenize
            detokenizer = self._tokenizer.detokenizer() if self._tokenizer and has_text else None
            text = OutputText(detokenizer, request.params)
            live = self._live[request.key] = LiveSequence(request, keys, channel, text, self._draft_tokens)
            self._tell_prompt(live)
            self._totals.prompt_tokens += len(request.prompt) // 4
        self.trace.span("output.open", began)

    def _admitted(self, message: SequencesAdmitted) -> None:
        began, now = self.trace.clock(), self._clock()
        rows = zip(
            message.sequence_keys, message.cached_tokens, message.resumed, message.replays, strict=True
        )
        for key, cached, resumed, replays in rows:
            self.trace.admitted(key, cached, resumed)
            live = self._live.get(key)
            if resumed:
                self._totals.preemptions += 1
            else:
                self._totals.cached_tokens += cached
            if live is None:
                continue
            if resumed:
                live.preemptions += 1
                live.replays = replays
            else:
                live.cached, live.admitted_at = cached, now
        self.trace.span("output.admit", began)

    def _later_steps(self, commit: StepCommit) -> list[StepCommit]:
        """Steps of the same rows that wait behind this one.

        Serving them together, sequence by sequence, wakes each reader once: where streams cannot keep up with
        the device, deltas grow and the device does not wait.
        """
        later: list[StepCommit] = []
        while (
            len(later) + 1 < TOGETHER
            and isinstance(self.mailbox.next, StepCommitted)
            and self.mailbox.next.commit.layout.slots is commit.layout.slots
        ):
            message = self.mailbox.receive_nowait()
            assert isinstance(message, StepCommitted)
            later.append(message.commit)
        return later

    async def _committed(self, commits: list[StepCommit]) -> None:
        """Serves steps of the same rows, oldest first."""
        began, now = self.trace.clock(), self._clock()
        for commit in commits:
            self.trace.stepped(began, commit.step, commit.layout, commit.counts)
            self.trace.measurements.committed(began, commit.layout.decode_count)
            if commit.prompt_scores is not None:
                self._gather_prompt_scores(commit)
        self._totals.steps += len(commits)
        steps = [CommitRows(commits[0])]
        for before, commit in pairwise(commits):
            began = self.trace.span("output.detokenize", began, before.step)  # each step's arrow ends in one
            steps.append(CommitRows(commit))
        newest = commits[-1].step
        first, count = 0, len(steps[0].keys)
        while first < count:
            shares = 1 + len(self.mailbox) // BACKLOG
            end = min(first + min(AT_ONCE * shares, MOST_AT_ONCE) // (1 + len(steps)), count)
            self._serve(steps, first, end, now)
            first = end
            if first < count:
                self.trace.span("output.detokenize", began, newest)
                await self._let_others_run(TURNS // shares)
                began = self.trace.clock()
        self.trace.span("output.detokenize", began, newest)

    async def _let_others_run(self, most: int) -> None:
        """Readers first; then, for so many turns, those through whose hands the next step goes."""
        await asyncio.sleep(0)
        turns = 0
        while turns < most and self._next_step_waits():
            turns += 1
            await asyncio.sleep(0)
        if turns:
            await asyncio.sleep(0)  # whoever got an answer has a turn, and may have a message now

    def _serve(self, steps: list[CommitRows], first: int, end: int, now: float) -> None:
        """Some rows of these steps. Nearly all are of a sequence that goes on, and wants its text only."""
        live_by_key, keys = self._live, steps[0].keys
        decodes = min(rows.decodes for rows in steps)
        steady = not any(rows.any_finish for rows in steps)
        for row in range(first, end):
            live = live_by_key.get(keys[row])
            if live is None:
                continue
            try:
                if live.plain is not None and row < decodes and (steady or _goes_on(steps, row)):
                    self._plain_row(live, live.plain, steps, row)
                else:
                    self._rows(live, steps, row, now)
            except Exception as error:  # in one request's text: that request's error
                failure = RequestFailedError("output")
                failure.__cause__ = error
                self._fail(live, failure, at_scheduler=True)

    def _gather_prompt_scores(self, commit: StepCommit) -> None:
        """Ahead of the step's tokens, so that they go with the first of them."""
        scored, scores = commit.scored, commit.prompt_scores
        if scored is None or scores is None:
            return
        rows = 0
        for sequence, first, count in zip(scored.sequences, scored.first, scored.counts, strict=True):
            part = slice(rows, rows + int(count))
            rows = part.stop
            live = self._live.get(int(commit.layout.sequence_keys[sequence]))
            if live is not None and live.prompt_scores is not None:
                live.prompt_scores.add(
                    int(first), scores.logprobs[part], scores.top_logprobs[part], scores.top_tokens[part]
                )
                self._tell_prompt(live)

    def _tell_prompt(self, live: LiveSequence) -> None:
        scores = live.prompt_scores
        if scores is not None and scores.complete:
            live.channel.describe_prompt(live.choice, scores.result())
            live.prompt_scores = None

    def _plain_row(
        self, live: LiveSequence, text_of: Callable[[list[int]], str], steps: list[CommitRows], row: int
    ) -> None:
        """Decode rows that end nothing, of a sequence without stop strings and logprobs: one write."""
        token_ids: list[int] = []
        accepts, verifies = live.accept_lengths, live.verify_lengths
        for rows in steps:
            token_ids += rows.tokens[row][: rows.counts[row]]
            accepts[rows.accepted[row]] += 1
            verifies[rows.drafted[row]] += 1
        live.output += len(token_ids)
        late = live.channel.write(live.choice, text_of(token_ids), token_ids)
        self._totals.coalesced_deltas += len(steps) - 1
        if late:
            self._coalesced(live, joined=len(token_ids) - steps[0].counts[row])

    def _rows(self, live: LiveSequence, steps: list[CommitRows], row: int, now: float) -> None:
        for rows in steps:
            if live.key in self._live:  # else it ended in the step before
                self._row(live, rows, row, now, joins=rows is not steps[0])

    def _row(self, live: LiveSequence, rows: CommitRows, row: int, now: float, *, joins: bool) -> None:
        """`joins`: served together with the step before, so that no reader had a turn in between."""
        finish, count, token_ids = rows.finish[row], rows.counts[row], rows.tokens[row]
        if not count and finish == RUNNING:
            return  # a part of a prompt
        if finish == FAILED:
            self._fail(live, NotFiniteError(live.prompt_tokens + live.output), at_scheduler=False)
            return
        if live.replays and count:
            live.replays = False
            return  # a prompt row draws one token, this one, and it ended nothing
        if live.first_token_at is None and count:
            live.first_token_at = now
        live.output += count
        if row < rows.decodes:
            live.accept_lengths[rows.accepted[row]] += 1
            live.verify_lengths[rows.drafted[row]] += 1
        hidden = finish == STOP and not live.include_stop
        if hidden or count < len(token_ids):
            token_ids = token_ids[: count - hidden]
        text, used = live.text.push(token_ids)
        late = False
        if used:
            if used < len(token_ids):
                token_ids = token_ids[:used]
            logprobs = None if live.logprobs < 0 else rows.logprobs(row, used, live.logprobs)
            late = live.channel.write(live.choice, text, token_ids, logprobs)
        if live.text.stopped:
            self._stop(live, surplus=count - used, now=now, runs_on=finish == RUNNING)
        elif finish != RUNNING:
            self._end(live, FinishReason.STOP if finish == STOP else FinishReason.LENGTH, now)
        if late and joins:
            self._totals.coalesced_deltas += 1
        elif late:
            self._coalesced(live)

    def _coalesced(self, live: LiveSequence, joined: int = 0) -> None:
        """Its reader had a turn and has not read what came before: is it slow? `joined` tokens came with a
        later step, of which it had no turn to read any."""
        self._totals.coalesced_deltas += 1
        if self._most_unread is None or live.key not in self._live:
            return
        unread = live.channel.unread_tokens - joined
        if unread >= self._most_unread:
            self._fail(live, SlowReaderError(unread), at_scheduler=True)

    def _stop(self, live: LiveSequence, *, surplus: int, now: float, runs_on: bool) -> None:
        """A stop string was found; `surplus` tokens behind it were sampled, but are no output."""
        live.output -= surplus
        self._end(live, FinishReason.STOP, now)
        if runs_on:
            self._stopped.append(live.key)

    def _closed(self, key: int, reason: FinishReason | None, error: Exception | None) -> None:
        live = self._live.get(key)
        if live is None:
            return
        if reason is not None:
            self._end(live, reason, self._clock())
        elif error is not None:
            self._fail(live, error, at_scheduler=True)

    def _end(self, live: LiveSequence, reason: FinishReason, now: float) -> None:
        tail = live.text.finish()
        if tail:
            live.channel.write(live.choice, tail, ())
        usage = live.usage(now)
        live.channel.finish(live.choice, reason, usage)
        self.trace.ended(live.key, reason.value, live.output)
        self.trace.measurements.ended(
            now - live.request.arrival, usage.queue_seconds, usage.first_token_seconds
        )
        self._leaves(live)
        if reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._totals.finished += 1
        else:
            self._totals.aborted += 1

    def _fail(self, live: LiveSequence, error: Exception, *, at_scheduler: bool) -> None:
        """Ends all choices of a request; with `at_scheduler`, this one still runs there."""
        live.channel.fail(lambda: error)
        for key in live.siblings:
            sibling = self._live.get(key)
            if sibling is None:
                continue
            self._leaves(sibling)
            self._totals.failed += 1
            self.trace.ended(key, f"error: {type(error).__name__}", -1)
            if at_scheduler or key != live.key:
                self._stopped.append(key)

    def _leaves(self, live: LiveSequence) -> None:
        self._totals.add(live)
        del self._live[live.key]

    def _tell_scheduler(self) -> None:
        if self._stopped:
            self._to_scheduler.post(RequestCancelled(sequence_keys=tuple(self._stopped), reason=None))
            self._stopped.clear()


def _goes_on(steps: list[CommitRows], row: int) -> bool:
    return all(rows.finish[row] == RUNNING for rows in steps)
