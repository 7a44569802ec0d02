"""Whether the next step drafts, and how many of the drafts at hand it verifies: speculation that never costs.

Two switches with different prices. Verifying fewer drafts saves rows; it is decided anew for every step, with
confidences that arrive whether or not the drafts were verified, so the decision needs no exploration and
comes back by itself. Drafting itself costs a pass of the draft layers even when nothing is verified; where
that does not pay either, drafting rests, and then there are no confidences to come back by. So one step of a
rest drafts and nobody verifies it, a probe that a rest is long enough to make cheap. Where it promises a
gain, or so many sequences have ended that what is known promises one, drafts are tried for a few steps.
Whether they pay is judged by what these steps gave and took, not by what was expected of them.

Plan n uses confidences of step n-2 and older, with and without overlap (see verification.py for why), so the
news of a commit wait here until their turn. A sequence without news counts as the mean of the others.
Confidences are promises of a small network: what they promise is compared with what was accepted, and
expected tokens are scaled by that.

Invariant: whoever decodes in step n+1 was sampled in step n, so one flag says whether drafts are at hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np

from stepahead.engine.model.runner import BatchLayout, Float32s, Int64s
from stepahead.engine.sampling.commit import StepCommit

from .cost_curve import CostModel
from .ledger import Ledger
from .limits import SchedulingLimits
from .members import Members
from .verification import Budget, best_budget, budget_for_targets, survivals

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
FIRST_GUESS = 0.8
"""Confidence in each draft before any was seen."""
LEARN_EVERY = 16
"""Commits of which one teaches the mean confidence and how far to trust it."""
LEARNING = np.float32(0.2)
LEAST_SURVIVAL = np.float32(0.04)
"""A draft with less is not verified where rows are free either: on the built-in model these are a third of
all drafts and give a hundredth of the tokens, and somebody pays for the power."""
CLEARLY = 0.95
"""Of the plain pace: a step expected to be slower is not tried."""
PRIOR_SEQUENCES = 4
"""What was known before a probe weighs as much as so many sequences of it."""
FEWER = 0.8
"""Sequences, as a share of those when a rest began, from which the reasons for the rest are void."""


class SpeculationTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Since the engine opened. Time saved is against decoding without drafts, and may be negative."""

    drafted: int = 0  # drafts made
    steps_without_drafts: int = 0
    seconds_saved_estimated: float = 0.0  # expected tokens, modelled times
    seconds_saved_measured: float = 0.0  # tokens that came, times that were observed
    trust: float = 1.0  # accepted drafts by those the confidences promised


class _Planned(msgspec.Struct, frozen=True):
    """What was expected of a step that does nothing but decode."""

    sequences: int
    rows: int
    drafting: bool
    plain_seconds: float  # of the same step without drafts
    seconds: float
    judged: bool  # verified by confidences: counts when the gain of drafting is judged


class _News(msgspec.Struct, frozen=True):
    """Confidences of a committed step, until they may be used."""

    commit: StepCommit
    confidences: Float32s


class Speculation:
    """The choice of one engine. Without a cost model, or with a fixed number, every step verifies alike."""

    def __init__(self, ledger: Ledger, limits: SchedulingLimits, costs: CostModel | None) -> None:
        self._ledger, self._costs = ledger, costs
        self.adaptive = limits.verify is None and costs is not None and limits.draft_tokens > 0
        slots = 1 + limits.sequence_slots
        self._mean: Float32s = np.full(limits.draft_tokens, FIRST_GUESS, dtype=np.float32).cumprod()
        self._survival: Float32s = np.tile(self._mean, (slots, 1))
        self._places = np.arange(limits.draft_tokens)
        self._owners: Int64s = np.zeros(slots, dtype=np.int64)
        self._members: Members | None = None
        self._news: deque[_News] = deque()
        self._planned: deque[_Planned | None] = deque()
        self._at_hand = False  # the newest planned step leaves drafts behind
        self._judged = (-1, 0)  # a step and its choice
        self._budget: Budget | None = None
        self._learned = 0
        self._trust = 1.0
        self._promised = self._kept = 8.0  # as if that many had come true
        self._rest = self._rest_sequences = 0
        self._tried = 0  # steps that drafted since the last rest
        self._rests_taken = self._rests_in_a_row = 0  # in all; since drafts paid
        self._judged_sequences = 1  # of the steps that the sums below are of
        self._doubted = True  # what is expected may end a trial
        self._tokens = self._seconds = self._plain_tokens = self._plain_seconds = 0.0
        self._forced: tuple[Callable[[int, int], int], Callable[[int], bool]] | None = None
        self._steps_without = self._drafted = 0
        self._saved_estimated = self._saved_measured = 0.0

    def force(
        self, spare: Callable[[int, int], int], drafts: Callable[[int], bool] = lambda step: True
    ) -> None:
        """From now on `spare(step, most)` drafts are verified, and step `drafts(step)` or not; for tests and
        benchmarks, which must see any schedule give the same text. Before the first step."""
        self.adaptive = self._mean.size > 0
        self._forced = (spare, drafts)

    # Choosing a step.

    def spare(self, members: Members, other_rows: int, step: int) -> int:
        """Drafts that step `step` verifies in all, beside `other_rows` rows of prompts."""
        if not self.adaptive:
            return members.most_spare
        if self._judged[0] == step and self._members is members:
            return self._judged[1]
        self._catch_up(step)
        self._welcome(members)
        self._budget, spare = None, 0
        if self._at_hand and members.most_spare:
            if self._forced is not None:
                spare = min(max(self._forced[0](step, members.most_spare), 0), members.most_spare)
            elif not self._rest:  # what a probe made is only looked at
                self._budget = self._choose(members, other_rows)
                spare = self._budget.spare
        self._judged = (step, spare)
        return spare

    def _choose(self, members: Members, other_rows: int) -> Budget:
        assert self._costs is not None
        survival: Float32s = self._survival[members.rows]
        survival = survival * (survival >= LEAST_SURVIVAL)
        if self._trust != 1.0:
            survival = survival * np.float32(self._trust)
        if members.capped is not None:
            survival = survival * members.capped
        count = members.count
        seconds = self._costs.seconds(other_rows + count, members.most_spare, count, drafting=True)
        if members.targets is not None:
            return budget_for_targets(survival, seconds, members.targets)
        return best_budget(survival, seconds)

    def needs_redeal(self, members: Members, decode: BatchLayout) -> bool:
        """Whether the device must split these decode rows: there is more than one way to."""
        return self.adaptive and members.count > 1 and 0 < decode.rows - members.count < members.most_spare

    def drafts(self, members: Members, others_draft: bool) -> bool:
        """Whether the step that was just chosen leaves drafts; `others_draft`: prompts that end in it may."""
        if not (members.most_spare or others_draft):
            return False
        if self._forced is not None:
            return self._forced[1](self._judged[0])
        if not self.adaptive or not members.count:
            return True
        return self._is_worthwhile(members.count)

    def _is_worthwhile(self, sequences: int) -> bool:
        if self._rest:
            return self._rests(sequences)
        if not FEWER <= sequences / self._judged_sequences <= 1 / FEWER:
            self._judged_sequences = sequences
            self._forget_evidence()
        if self._tried >= TRIAL and self._plain_tokens >= ENOUGH_TOKENS:
            pays = self._tokens * self._plain_seconds >= self._plain_tokens * self._seconds
            if pays:
                self._rests_in_a_row = 0
            self._doubted = True
        else:
            pays = not (self._doubted and self._expects_loss(sequences))
        if not pays:
            self._begin_rest(sequences)
            return False
        self._tried += 1
        return True

    def _expects_loss(self, sequences: int) -> bool:
        """Before there is evidence: whether the step just chosen is expected to lose, clearly. Of many
        sequences, since confidences of a few say little of the next step."""
        if self._budget is None or sequences < ENOUGH_TOKENS:
            return False
        assert self._costs is not None
        plain = sequences / self._costs.step(sequences, sequences, drafting=False)
        return self._budget.tokens / self._budget.seconds < CLEARLY * plain

    def _forget_evidence(self) -> None:
        self._tokens = self._seconds = self._plain_tokens = self._plain_seconds = 0.0

    def _rests(self, sequences: int) -> bool:
        """One step without drafts, or the probe near its end."""
        self._rest -= 1
        fewer = sequences < FEWER * self._rest_sequences
        if fewer:
            self._rest_sequences, self._rests_in_a_row = sequences, 0
        if self._rest and not fewer:
            return self._rest == PROBE
        assert self._costs is not None
        self._costs.correct()  # steps without drafts were seen, perhaps for the first time
        due = not self._rest and self._rests_taken % TRIAL_EVERY == 0
        if due or self._promises(sequences):
            self._rest = self._tried = 0
            self._doubted = not due
            self._survival[:] = self._mean  # what sequences were known for is as old as the rest
            self._forget_evidence()
            return True
        if not self._rest:
            self._begin_rest(sequences)
        return False

    def _begin_rest(self, sequences: int) -> None:
        """So long that the probe at its end is cheap; the next one, if that was in vain, is twice as long."""
        assert self._costs is not None
        plain = self._costs.step(sequences, sequences, drafting=False)
        draft = self._costs.step(sequences, sequences, drafting=True) - plain
        steps = draft / (PROBE_SHARE * plain)
        if not self._costs.knows_drafts(sequences):
            steps = SHORTEST_REST  # a measurement on a busy machine must not put drafts off for long
        steps *= 2 ** min(self._rests_in_a_row, MOST_DOUBLINGS)
        self._rests_in_a_row += 1
        self._rest, self._rest_sequences = int(min(max(steps, SHORTEST_REST), LONGEST_REST)), sequences
        self._rests_taken += 1

    def _promises(self, sequences: int) -> bool:
        """Whether so many sequences would gain by drafts as good as the last ones were, verified alike."""
        assert self._costs is not None
        depth = self._mean.size
        tokens = sequences * (1.0 + np.cumsum(self._mean * self._trust))
        seconds = self._costs.seconds(sequences, sequences * depth, sequences, drafting=True)
        best = float((tokens / seconds[sequences::sequences]).max())
        return best > sequences / self._costs.step(sequences, sequences, drafting=False)

    # What was planned.

    def planned(self, layout: BatchLayout, *, drafts: bool) -> None:
        """Remembers the step that was just chosen, now that it is sent."""
        if drafts:
            self._drafted += int(np.count_nonzero(layout.samples)) * self._mean.size
        if not self.adaptive:
            return
        verified, count = self._at_hand, layout.decode_count
        self._at_hand = drafts
        if not drafts:
            self._steps_without += 1
        if self._costs is None or not count or count < layout.slots.size:
            self._planned.append(None)
            return
        plain = self._costs.step(count, count, drafting=False)
        if verified and self._budget is not None:
            tokens, seconds = self._budget.tokens, self._budget.seconds
        else:
            tokens, seconds = float(count), self._costs.step(count, count, drafting=drafts)
        self._saved_estimated += tokens * plain / count - seconds
        judged = verified and drafts and self._tried > WARM_UP
        self._planned.append(_Planned(count, layout.rows, drafts, plain, seconds, judged))

    # What came of it.

    def committed(self, commit: StepCommit, seconds: float) -> None:
        """The oldest uncommitted step; `seconds` on the device, 0 where nobody knows."""
        if not self.adaptive:
            return
        planned = self._planned.popleft()
        if planned is not None and self._costs is not None:
            if seconds > 0.0:
                self._costs.observe(planned.rows, planned.sequences, seconds, drafting=planned.drafting)
            self._account(planned, int(np.add.reduce(commit.counts)), seconds or planned.seconds)
        if commit.confidences is not None:
            self._news.append(_News(commit, commit.confidences))

    def _account(self, planned: _Planned, tokens: int, seconds: float) -> None:
        """What a step gave and took, beside what plain decoding would have."""
        self._saved_measured += tokens * planned.plain_seconds / planned.sequences - seconds
        if planned.judged:
            self._tokens = FORGETTING * self._tokens + tokens
            self._seconds = FORGETTING * self._seconds + seconds
            self._plain_tokens = FORGETTING * self._plain_tokens + planned.sequences
            self._plain_seconds = FORGETTING * self._plain_seconds + planned.plain_seconds

    def _catch_up(self, step: int) -> None:
        """Takes in the confidences that the plan of `step` may see."""
        while self._news and self._news[0].commit.step <= step - 2:
            self._take_in(self._news.popleft())

    def _take_in(self, news: _News) -> None:
        layout, rows = news.commit.layout, self._ledger.rows(news.commit.layout)
        chances = survivals(news.confidences)
        self._learned += 1
        if self._rest or self._tried < 4 * TRIAL or self._learned % LEARN_EVERY == 0:
            self._learn(news.commit, chances)
        if self._members is not None and layout.slots is self._members.slots:
            self._survival[rows] = chances
            return
        here = np.flatnonzero(layout.samples & (self._owners[rows] == layout.admissions))
        self._survival[layout.slots[here]] = chances[here]

    def _welcome(self, members: Members) -> None:
        """Newcomers among those who decode begin with the mean."""
        if members is self._members:
            return
        self._members = members
        new = members.slots[self._owners[members.slots] != members.admissions]
        self._survival[new] = self._mean
        self._owners[members.slots] = members.admissions

    def _learn(self, commit: StepCommit, chances: Float32s) -> None:
        """Compares a step's verified drafts with their survivals, which are still those of the round before
        its own."""
        layout, decodes = commit.layout, commit.layout.decode_count
        sampled = chances if decodes == layout.slots.size else chances[layout.samples]
        if len(sampled):
            count = len(sampled)
            weight = np.float32(count / (count + PRIOR_SEQUENCES)) if self._rest else LEARNING
            self._mean += (np.add.reduce(sampled, axis=0) / count - self._mean) * weight
        verified = self._places < commit.drafted[:decodes, None]
        promised = np.add.reduce(self._survival[layout.slots[:decodes]] * verified, axis=None)
        self._promised = FORGETTING * self._promised + float(promised)
        self._kept = FORGETTING * self._kept + int(np.add.reduce(commit.accepted[:decodes]))
        self._trust = min(max(self._kept / max(self._promised, 1e-6), 0.1), 1.5)

    def totals(self) -> SpeculationTotals:
        return SpeculationTotals(
            drafted=self._drafted,
            steps_without_drafts=self._steps_without,
            seconds_saved_estimated=self._saved_estimated,
            seconds_saved_measured=self._saved_measured,
            trust=self._trust,
        )
