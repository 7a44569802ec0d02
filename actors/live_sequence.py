"""One sequence whose caller still waits for its end, and one step's results as plain lists.

A step's results are arrays, and a stream is served in Python, one after the other: reading an array element
costs more than serving it. So a commit is turned into lists once, and everything the loop over its rows
touches is an attribute. What can be computed from other counters is computed when somebody asks for usage.
"""

from __future__ import annotations

import numpy as np

from stepahead.engine.logprobs import GatheredScores
from stepahead.engine.sampling.commit import StepCommit
from stepahead.engine.speculation_stats import by_position, prefix_tokens
from stepahead.engine.text.output_text import OutputText
from stepahead.engine.types import Request, Usage

from .delta_channel import DeltaChannel, LogprobRows


class LiveSequence:
    """What the output actor knows of a sequence without a terminal event. Times on the loop's clock."""

    __slots__ = (
        "accept_lengths",
        "admitted_at",
        "cached",
        "channel",
        "choice",
        "first_token_at",
        "include_stop",
        "key",
        "logprobs",
        "output",
        "plain",
        "preemptions",
        "prompt_scores",
        "replays",
        "request",
        "siblings",
        "text",
        "verify_lengths",
    )

    def __init__(
        self,
        request: Request,
        siblings: tuple[int, ...],
        channel: DeltaChannel,
        text: OutputText,
        draft_tokens: int,
    ) -> None:
        """`siblings` are the keys of all choices of its request, its own included."""
        self.request, self.siblings, self.channel, self.text = request, siblings, channel, text
        self.key, self.choice = request.key, request.choice
        self.include_stop, self.logprobs = request.params.include_stop, request.params.logprobs
        self.plain = text.plain if self.logprobs < 0 else None  # makes the text, where a row needs no more
        self.output = self.cached = self.preemptions = 0
        self.accept_lengths = [0] * (1 + draft_tokens)  # how often so many drafts of a step were accepted
        self.verify_lengths = [0] * (1 + draft_tokens)
        self.replays = False  # its next token was told before a preemption
        self.prompt_scores = _scores(request)  # until they are complete
        self.admitted_at: float | None = None
        self.first_token_at: float | None = None

    @property
    def prompt_tokens(self) -> int:
        return len(self.request.prompt) // 4

    def usage(self, now: float) -> Usage:
        arrival, first = self.request.arrival, self.first_token_at
        return Usage(
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached,
            output_tokens=self.output,
            drafted_tokens=prefix_tokens(self.verify_lengths),
            accepted_tokens=prefix_tokens(self.accept_lengths),
            decode_steps=sum(self.accept_lengths),
            accepted_by_position=by_position(self.accept_lengths),
            preemptions=self.preemptions,
            queue_seconds=(now if self.admitted_at is None else self.admitted_at) - arrival,
            first_token_seconds=None if first is None else first - arrival,
        )


def _scores(request: Request) -> GatheredScores | None:
    asked = request.params.prompt_logprobs
    return None if asked < 0 else GatheredScores(np.frombuffer(request.prompt, dtype=np.int32), asked)


class CommitRows:
    """A commit as lists, index = row of its layout."""

    __slots__ = (
        "_commit",
        "accepted",
        "any_finish",
        "counts",
        "decodes",
        "drafted",
        "finish",
        "keys",
        "tokens",
    )

    def __init__(self, commit: StepCommit) -> None:
        self._commit, self.any_finish = commit, commit.any_finish
        self.keys: list[int] = commit.layout.sequence_keys.tolist()
        self.decodes = commit.layout.decode_count  # rows before it are decodes
        self.counts: list[int] = commit.counts.tolist()
        self.finish: list[int] = commit.finish.tolist()
        self.tokens: list[list[int]] = commit.tokens.tolist()
        self.drafted: list[int] = commit.drafted.tolist()
        self.accepted: list[int] = commit.accepted.tolist()

    def logprobs(self, row: int, count: int, wanted: int) -> LogprobRows | None:
        """Of the first `count` tokens. Copies: a slow reader must not keep a whole step's arrays alive."""
        commit = self._commit
        if commit.logprobs is None:
            return None
        chosen = commit.logprobs[row, :count].copy()
        if wanted == 0 or commit.top_logprobs is None or commit.top_tokens is None:
            return LogprobRows(chosen, None, None)
        top = commit.top_logprobs[row, :count, :wanted].copy()
        return LogprobRows(chosen, top, commit.top_tokens[row, :count, :wanted].copy())
