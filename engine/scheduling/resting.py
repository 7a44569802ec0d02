"""Whether a step should leave drafts: making them costs a pass even when none of them is verified.

Where that does not pay, drafting rests, and then there are no confidences to come back by. So one step of a
rest drafts and nobody verifies it: a probe, and a rest is long enough to make it cheap. Where the probe
promises a gain, or so many sequences have ended that what is known promises one, drafts are tried for a few
steps. Whether they pay is judged by the tokens that these steps gave, not by those expected of them, and by
what the model says of their time beside that of plain ones.

That model learns from steps of different sizes, one after the other (`cost_curve.py`). Where all have one
size, because rows seem free or drafts sure, a curve that lies would never be found out. So now and then a
step leaves no drafts, a *look*: it is shorter by the draft pass, and the next one has a row a sequence. Looks
are dense at first and become rare; each costs what drafts give in one step.

Rejected: judging by expectation alone, which a wrong curve or an untrue confidence fools for ever; by
observed times beside modelled ones, which a machine that slows down fools; and trials without probes, which
cost six steps where one tells.
"""

from __future__ import annotations

import math

import numpy as np

from stepahead.engine.model.runner import Float32s

from .cost_curve import CostModel
from .verification import Budget

TRIAL = 6
"""Steps that draft before the gain of drafting is judged; the first two verify by what was known before."""
WARM_UP = 2
ENOUGH_TOKENS = 16.0
"""Of plain decoding in the same steps: with few sequences a trial lasts longer; and
MANY_TOKENS, of which the evidence consists at most. What one sequence accepts in twenty steps is luck."""
MANY_TOKENS = 100.0
SHORTEST_REST, LONGEST_REST = 32, 1024
"""Steps without drafts."""
PROBE = 3
"""Steps before the end of a rest at which one drafts, so that its confidences are there in time."""
PROBE_SHARE = 0.02
"""What a probe may cost, as a share of a first rest; each of those that follow in a row is twice as long."""
MOST_DOUBLINGS = 4
TRIAL_EVERY = 16
"""Rests after which drafts are tried whatever the probe says: trust must be able to come back, too."""
MOST_FORGOTTEN = 0.02
"""Of the past, per step, in sums of tokens and seconds: fifty steps count, more with few sequences."""
LUCK = 0.5
"""Standard deviation of the tokens of a step of one sequence, as a share of them: evidence that luck may
explain is no reason to rest."""
CLEARLY, HOPELESSLY = 0.95, 0.8
"""Of the plain pace: where a step is expected to be slower, drafts are not tried. Expectations of a few
sequences must be worse than those of many, since they say little of the next step."""
FEWER = 0.8
"""Sequences, as a share of those when a rest began, from which the reasons for the rest are void."""
FIRST_LOOK, MOST_BETWEEN_LOOKS = 4, 512
"""Steps with drafts before the first look and again before the second; each later pause is twice as long."""


class Resting:
    """Drafting, rests, probes and trials of one engine. `sequences` are those that decode in a step."""

    def __init__(self, costs: CostModel) -> None:
        self._costs = costs
        self._left = self._rest_sequences = 0
        self._tried = 0  # steps that drafted since the last rest
        self._rests_taken = self._rests_in_a_row = 0  # in all; since drafts paid
        self._judged_sequences = 1  # of the steps that the sums below are of
        self._doubted = True  # what is expected may end a trial
        self._tokens = self._seconds = self._plain_tokens = self._plain_seconds = 0.0
        self._to_look, self._pause = FIRST_LOOK, FIRST_LOOK // 2  # steps with drafts

    @property
    def resting(self) -> bool:
        return self._left > 0

    @property
    def in_trial(self) -> bool:
        """Whether news are rare, or young: each counts."""
        return self.resting or self._tried < 4 * TRIAL

    @property
    def counts(self) -> bool:
        """Whether a step planned now says what drafts are worth."""
        return self._tried > WARM_UP

    def drafts(
        self, sequences: int, budget: Budget | None, chances: Float32s, *, mixed: bool = False
    ) -> bool:
        """Whether the step being planned leaves drafts. Once a step.

        `budget` is what it verifies by confidences, if it does; `chances` `[D]` what drafts of a sequence are
        worth as far as is known. `mixed`: the step has rows of prompts, so that there will soon be more
        sequences, and few ones end no rest.
        """
        if self._left:
            return self._rest_on(sequences, chances, mixed)
        if not FEWER <= sequences / self._judged_sequences <= 1 / FEWER:
            self._judged_sequences = sequences
            self._forget()
        if self._tried >= TRIAL and self._plain_tokens >= ENOUGH_TOKENS:
            luck = 1.0 + LUCK / math.sqrt(self._plain_tokens)
            pays = luck * self._tokens * self._plain_seconds >= self._plain_tokens * self._seconds
            if pays:
                self._rests_in_a_row = 0
            self._doubted = True
        else:
            pays = not (self._doubted and self._expects_loss(sequences, budget, chances))
        if not pays:
            self._begin(sequences)
            return False
        self._tried += 1
        return not self._looks_now()

    def _looks_now(self) -> bool:
        """Whether a step that would draft leaves that out, to show what it takes."""
        self._to_look -= 1
        if self._to_look:
            return False
        self._to_look = self._pause = min(2 * self._pause, MOST_BETWEEN_LOOKS)
        return True

    def account(self, sequences: int, plain_seconds: float, tokens: float, seconds: float) -> None:
        """What a step that `counts` gave and took, beside what it would have taken without drafts."""
        kept = 1.0 - min(sequences / MANY_TOKENS, MOST_FORGOTTEN)
        self._tokens = kept * self._tokens + tokens
        self._seconds = kept * self._seconds + seconds
        self._plain_tokens = kept * self._plain_tokens + sequences
        self._plain_seconds = kept * self._plain_seconds + plain_seconds

    def _expects_loss(self, sequences: int, budget: Budget | None, chances: Float32s) -> bool:
        """Before there is evidence: whether drafts are expected to lose, clearly."""
        if sequences < ENOUGH_TOKENS:
            return not self._promises(sequences, chances, HOPELESSLY)
        if budget is None:
            return False
        plain = sequences / self._costs.step(sequences, sequences, drafting=False)
        return budget.tokens / budget.seconds < CLEARLY * plain

    def _forget(self) -> None:
        self._tokens = self._seconds = self._plain_tokens = self._plain_seconds = 0.0

    def _rest_on(self, sequences: int, chances: Float32s, mixed: bool) -> bool:
        """One step without drafts, or the probe near the end."""
        self._left -= 1
        fewer = not mixed and sequences < FEWER * self._rest_sequences
        if fewer:
            self._rest_sequences, self._rests_in_a_row = sequences, 0
        if self._left and not fewer:
            return self._left == PROBE
        due = not self._left and self._rests_taken % TRIAL_EVERY == 0
        if due or self._promises(sequences, chances):
            self._left = self._tried = 0
            self._doubted = not due
            self._forget()
            return True
        if not self._left:
            self._begin(sequences)
        return False

    def _begin(self, sequences: int) -> None:
        """So long that the probe at its end is cheap; the next one, if that was in vain, is twice as long."""
        plain = self._costs.step(sequences, sequences, drafting=False)
        draft = self._costs.step(sequences, sequences, drafting=True) - plain
        steps = draft / (PROBE_SHARE * plain)
        if not self._costs.knows_drafts(sequences):
            steps = SHORTEST_REST  # a measurement on a busy machine must not put drafts off for long
        steps *= 2 ** min(self._rests_in_a_row, MOST_DOUBLINGS)
        self._rests_in_a_row += 1
        self._left, self._rest_sequences = int(min(max(steps, SHORTEST_REST), LONGEST_REST)), sequences
        self._rests_taken += 1

    def _promises(self, sequences: int, chances: Float32s, least: float = 1.0) -> bool:
        """Whether so many sequences would have more than `least` of the plain pace by drafts as good as the
        last ones were, verified alike."""
        tokens = sequences * (1.0 + np.cumsum(chances))
        seconds = self._costs.seconds(sequences, sequences * chances.size, sequences, drafting=True)
        best = float((tokens / seconds[sequences::sequences]).max())
        return best > least * sequences / self._costs.step(sequences, sequences, drafting=False)
