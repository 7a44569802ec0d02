"""One sequence from submission to its end, as the scheduler remembers it.

A running sequence's numbers live in the ledger's arrays; this object is touched only when something happens
to it. While it waits, it alone holds the tokens: the prompt, and after a preemption also what it has
generated, including what a step planned before the preemption still gives it.

Invariant: `slot` is 0 exactly while the sequence waits; `tokens` is current exactly then.
"""

from __future__ import annotations

import numpy as np

from stepahead.engine.model.runner import NO_TOKEN, Int32s
from stepahead.engine.types import Request

PRIORITY_SHIFT = 40
"""Bits of a key inside `seniority`: engines do not live for 2^40 requests."""
_PRIORITY_BOUND = 2**22 - 1  # keeps seniority inside int64; priorities beyond it count as this


class Sequence:
    """A live sequence. Times are seconds on the clock the caller passes as `now`."""

    __slots__ = (
        "admission",
        "admitted_at",
        "bypassed",
        "forced",
        "output",
        "preemptions",
        "prompt_length",
        "request",
        "scored",
        "seniority",
        "slot",
        "submitted_at",
        "tokens",
        "uncommitted",
    )

    def __init__(self, request: Request, now: float) -> None:
        self.request = request
        self.tokens: Int32s = np.frombuffer(request.prompt, dtype=np.int32)
        self.prompt_length = len(self.tokens)
        self.seniority = seniority(request)
        self.output = 0  # tokens generated, current while it waits
        self.forced = NO_TOKEN  # emitted, held back from `tokens` and `output`, to be drawn again
        self.scored = 0  # prompt rows committed with their logprobs, where those were asked for
        self.slot = 0
        self.admission = 0
        self.uncommitted = 0  # steps planned before a preemption whose commits are still to come
        self.preemptions = 0
        self.bypassed = 0  # admissions of younger sequences while this one did not fit
        self.submitted_at = now
        self.admitted_at: float | None = None  # first admission

    @property
    def key(self) -> int:
        return self.request.key

    @property
    def unscored(self) -> bool:
        """Whether prompt rows have still to report logprobs."""
        return self.request.params.prompt_logprobs >= 0 and self.scored < self.prompt_length - 1

    @property
    def most_hit(self) -> int:
        """Most tokens a prefix hit may cover: rows that must still report cannot be skipped."""
        return self.scored if self.unscored else len(self.tokens)

    def prefill_bytes(self) -> bytes:
        """Everything a waiting sequence has to prefill, int32 bytes."""
        return self.tokens.tobytes() if self.output else self.request.prompt

    def append(self, tokens: Int32s) -> None:
        """Output that a step planned before its preemption still gives a waiting sequence."""
        self.tokens = np.concatenate([self.tokens, tokens])
        self.output += len(tokens)
        if len(tokens):
            self.forced = NO_TOKEN

    def hold_back_last(self) -> None:
        """Before it returns, with all its steps committed: its newest token is drawn anew, and its drafts
        with it."""
        if self.output and self.forced == NO_TOKEN:
            self.forced = int(self.tokens[-1])
            self.tokens, self.output = self.tokens[:-1], self.output - 1


def seniority(request: Request) -> int:
    """(priority, arrival) as one number that fits int64; smaller is served first, unique per key."""
    bounded = max(-_PRIORITY_BOUND, min(request.priority, _PRIORITY_BOUND))
    return (-bounded << PRIORITY_SHIFT) + request.key
