"""Whether the next step drafts, and how many of the drafts at hand it verifies: speculation that never costs.

Two switches with different prices. Verifying fewer drafts saves rows; it is decided anew for every step, with
confidences that arrive whether or not the drafts were verified, so the decision needs no exploration and
comes back by itself (`confidences.py`, `verification.py`). Drafting costs a pass even when nothing is
verified; where that does not pay either, it rests (`resting.py`). Both judge by the step costs of
`cost_curve.py`.

Invariant: whoever decodes in step n+1 was sampled in step n, so one flag says whether drafts are at hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec
import numpy as np

from stepahead.engine.model.runner import BatchLayout
from stepahead.engine.sampling.commit import StepCommit

from .confidences import Confidences
from .cost_curve import CostModel, Step
from .ledger import Ledger
from .limits import SchedulingLimits
from .members import Members
from .resting import Resting
from .verification import WORTH_CHOOSING, Budget, best_budget, budget_for_targets


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
    seconds: float
    judged: bool  # verified by confidences: counts when the gain of drafting is judged


class Speculation:
    """The choice of one engine. Without a cost model, or with a fixed number, every step verifies alike."""

    def __init__(self, ledger: Ledger, limits: SchedulingLimits, costs: CostModel | None) -> None:
        self._costs, self._drafts = costs, limits.draft_tokens
        self.adaptive = limits.verify is None and costs is not None and limits.draft_tokens > 0
        self.confidences = Confidences(ledger, 1 + limits.sequence_slots, limits.draft_tokens)
        self.resting = None if costs is None else Resting(costs)
        self._planned: deque[_Planned | None] = deque()
        self._at_hand = False  # the newest planned step leaves drafts behind
        self._members: Members | None = None
        self._judged = (-1, 0)  # a step and its choice, for these members
        self._budget: Budget | None = None
        self._forced: tuple[Callable[[int, int], int], Callable[[int], bool]] | None = None
        self._least_gain = WORTH_CHOOSING
        self._steps_without = self._drafted = 0
        self._saved_estimated = self._saved_measured = 0.0

    def force(
        self, spare: Callable[[int, int], int], drafts: Callable[[int], bool] = lambda step: True
    ) -> None:
        """From now on `spare(step, most)` drafts are verified, and step `drafts(step)` or not; for tests and
        benchmarks, which must see any schedule give the same text. Before the first step."""
        self.adaptive = self._drafts > 0
        self._forced = (spare, drafts)

    def assume(self, costs: CostModel) -> None:
        """From now on steps are judged by `costs`, every gain is worth a choice, and drafting never rests.

        For benchmarks, which ask what another device would verify. Before an adaptive engine's first step.
        """
        self._costs, self.resting, self._least_gain = costs, None, 0.0

    # Choosing a step.

    def spare(self, members: Members, other_rows: int, step: int) -> int:
        """Drafts that step `step` verifies in all, beside `other_rows` rows of prompts."""
        if not self.adaptive:
            return members.most_spare
        if self._judged[0] == step and self._members is members:
            return self._judged[1]
        resting = self.resting is not None and self.resting.resting
        few = self.resting is not None and self.resting.in_trial
        self.confidences.catch_up(step, members, few=few, probe=resting)
        self._budget, spare = None, 0
        if self._at_hand and members.most_spare:
            if self._forced is not None:
                spare = min(max(self._forced[0](step, members.most_spare), 0), members.most_spare)
            elif not resting:
                self._budget = self._choose(members, other_rows)
                spare = self._budget.spare
            elif self._costs is not None and not self._costs.knows_rows:
                spare = min(members.count, members.most_spare)  # else what a probe made is only looked at
        self._members, self._judged = members, (step, spare)
        return spare

    def _choose(self, members: Members, other_rows: int) -> Budget:
        assert self._costs is not None
        worth, count = self.confidences.worth(members), members.count
        seconds = self._costs.seconds(other_rows + count, members.most_spare, count, drafting=True)
        if members.targets is not None:
            return budget_for_targets(worth, seconds, members.targets / self._costs.load)
        return best_budget(worth, seconds, self._least_gain)

    def needs_redeal(self, members: Members, decode: BatchLayout) -> bool:
        """Whether the device must split these decode rows: there is more than one way to."""
        return self.adaptive and members.count > 1 and 0 < decode.rows - members.count < members.most_spare

    def drafts(self, members: Members, others_draft: bool, *, mixed: bool = False) -> bool:
        """Whether the step that was just chosen leaves drafts; `others_draft`: prompts that end in it may.
        `mixed`: it has rows of prompts."""
        if not (members.most_spare or others_draft):
            return False
        if self._forced is not None:
            return self._forced[1](self._judged[0])
        if not self.adaptive or self.resting is None:
            return True
        rested = self.resting.resting
        if not members.count:
            return not rested
        chances = (
            self.confidences.mean * np.float32(self.confidences.trust) if rested else self.confidences.mean
        )
        drafts = self.resting.drafts(members.count, self._budget, chances, mixed=mixed)
        if rested and not self.resting.resting:
            self.confidences.forget_sequences()  # what they were known for is as old as the rest
        return drafts

    # What was planned.

    def planned(self, layout: BatchLayout, *, drafts: bool) -> None:
        """Remembers the step that was just chosen, now that it is sent."""
        if drafts:
            self._drafted += int(np.count_nonzero(layout.samples)) * self._drafts
        if not self.adaptive:
            return
        verified, count = self._at_hand, layout.decode_count
        self._at_hand = drafts
        if not drafts:
            self._steps_without += 1
        if self._costs is None or not count or count < layout.slots.size:
            self._planned.append(None)
            return
        plain, load = self._costs.step(count, count, drafting=False), self._costs.load
        if verified and self._budget is not None:
            tokens, seconds = self._budget.tokens, self._budget.seconds
        else:
            tokens, seconds = float(count), self._costs.step(layout.rows, count, drafting=drafts)
        self._saved_estimated += (tokens * plain / count - seconds) * load
        judged = verified and drafts and self.resting is not None and self.resting.counts
        self._planned.append(_Planned(count, layout.rows, drafts, seconds * load, judged))

    # What came of it.

    def committed(self, commit: StepCommit, seconds: float) -> None:
        """The oldest uncommitted step; `seconds` on the device, 0 where nobody knows."""
        if not self.adaptive:
            return
        planned = self._planned.popleft()
        if self._costs is not None:
            if planned is None or seconds <= 0.0:
                self._costs.interrupt()
            else:
                self._costs.observe(Step(planned.rows, planned.sequences, planned.drafting, seconds))
            if planned is not None:
                self._account(
                    self._costs, planned, int(np.add.reduce(commit.counts)), seconds or planned.seconds
                )
        self.confidences.report(commit)

    def _account(self, costs: CostModel, planned: _Planned, tokens: int, seconds: float) -> None:
        """What a step gave and took, beside plain decoding on a machine that was as busy."""
        count = planned.sequences
        plain = costs.step(count, count, drafting=False)
        plain *= seconds / costs.step(planned.rows, count, drafting=planned.drafting)
        self._saved_measured += tokens * plain / count - seconds
        if planned.judged and self.resting is not None:
            self.resting.account(count, plain, tokens, seconds)

    def totals(self) -> SpeculationTotals:
        return SpeculationTotals(
            drafted=self._drafted,
            steps_without_drafts=self._steps_without,
            seconds_saved_estimated=self._saved_estimated,
            seconds_saved_measured=self._saved_measured,
            trust=self.confidences.trust,
        )
