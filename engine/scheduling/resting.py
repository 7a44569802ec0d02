"""Whether a step should leave drafts: making them costs a pass even when none of them is verified.

Where that does not pay, drafting rests, and then there are no confidences to come back by. So one step of a
rest drafts and nobody verifies it: a probe, and a rest is long enough to make it cheap. Where the probe
promises a gain, or so many sequences have ended that what is known promises one, drafts are tried for a few
steps. Whether they pay is judged by what these steps gave and took, not by what was expected of them.

Rejected: judging by expectation alone, which a wrong curve or an untrue confidence fools for ever; and trials
without probes, which cost six steps where one tells.
"""

from __future__ import annotations

import numpy as np

from stepahead.engine.model.runner import Float32s

from .cost_curve import CostModel
from .verification import Budget

TRIAL = 6
"""Steps that draft before the gain of drafting is judged; the first two verify by what was known before."""
WARM_UP = 2
ENOUGH_TOKENS = 8.0
"""Of plain decoding in the same steps: with few sequences a trial lasts longer."""
SHORTEST_REST, LONGEST_REST = 32, 1024
"""Steps without drafts."""
PROBE = 3
"""Steps before the end of a rest at which one drafts, so that its confidences are there in time."""
PROBE_SHARE = 0.02
"""What a probe may cost, as a share of a first rest; each of those that follow in a row is twice as long."""
MOST_DOUBLINGS = 4
TRIAL_EVERY = 16
"""Rests after which drafts are tried whatever the probe says: trust must be able to come back, too."""
FORGETTING = 0.95
"""Weight of the past, per step, in sums of tokens and seconds: about twenty steps count."""
CLEARLY = 0.95
"""Of the plain pace: a step expected to be slower is not tried."""
FEWER = 0.8
"""Sequences, as a share of those when a rest began, from which the reasons for the rest are void."""


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

    def drafts(self, sequences: int, budget: Budget | None, chances: Float32s) -> bool:
        """Whether the step being planned leaves drafts. Once a step.

        `budget` is what it verifies by confidences, if it does; `chances` `[D]` what drafts of a sequence are
        worth as far as is known.
        """
        if self._left:
            return self._rest_on(sequences, chances)
        if not FEWER <= sequences / self._judged_sequences <= 1 / FEWER:
            self._judged_sequences = sequences
            self._forget()
        if self._tried >= TRIAL and self._plain_tokens >= ENOUGH_TOKENS:
            pays = self._tokens * self._plain_seconds >= self._plain_tokens * self._seconds
            if pays:
                self._rests_in_a_row = 0
            self._doubted = True
        else:
            pays = not (self._doubted and self._expects_loss(sequences, budget))
        if not pays:
            self._begin(sequences)
            return False
        self._tried += 1
        return True

    def account(self, sequences: int, plain_seconds: float, tokens: float, seconds: float) -> None:
        """What a step that `counts` gave and took, beside what it would have taken without drafts."""
        self._tokens = FORGETTING * self._tokens + tokens
        self._seconds = FORGETTING * self._seconds + seconds
        self._plain_tokens = FORGETTING * self._plain_tokens + sequences
        self._plain_seconds = FORGETTING * self._plain_seconds + plain_seconds

    def _expects_loss(self, sequences: int, budget: Budget | None) -> bool:
        """Before there is evidence: whether the step just chosen is expected to lose, clearly. Of many
        sequences, since confidences of a few say little of the next step."""
        if budget is None or sequences < ENOUGH_TOKENS:
            return False
        plain = sequences / self._costs.step(sequences, sequences, drafting=False)
        return budget.tokens / budget.seconds < CLEARLY * plain

    def _forget(self) -> None:
        self._tokens = self._seconds = self._plain_tokens = self._plain_seconds = 0.0

    def _rest_on(self, sequences: int, chances: Float32s) -> bool:
        """One step without drafts, or the probe near the end."""
        self._left -= 1
        fewer = sequences < FEWER * self._rest_sequences
        if fewer:
            self._rest_sequences, self._rests_in_a_row = sequences, 0
        if self._left and not fewer:
            return self._left == PROBE
        self._costs.correct()  # steps without drafts were seen, perhaps for the first time
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

    def _promises(self, sequences: int, chances: Float32s) -> bool:
        """Whether so many sequences would gain by drafts as good as the last ones were, verified alike."""
        tokens = sequences * (1.0 + np.cumsum(chances))
        seconds = self._costs.seconds(sequences, sequences * chances.size, sequences, drafting=True)
        best = float((tokens / seconds[sequences::sequences]).max())
        return best > sequences / self._costs.step(sequences, sequences, drafting=False)
