"""What is known of drafts before they are verified: survivals by slot, their mean, and how far to trust them.

News of a commit wait here until a plan may know them: plan n sees step n-2 and older, with and without
overlap (verification.py says why). A sequence without news counts as the mean of the others. Confidences are
promises of a small network: what they promise is compared with what was accepted, and what is expected is
scaled by that.
"""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np

from stepahead.engine.model.runner import Float32s, Int64s
from stepahead.engine.sampling.commit import StepCommit

from .ledger import Ledger
from .members import Members
from .verification import survivals

FIRST_GUESS = 0.8
"""Confidence in each draft before any was seen."""
LEARN_EVERY, FEW_SEQUENCES = 16, 4
"""Commits of which one teaches the mean and the trust, when commits abound; and one of FEW_SEQUENCES where
they are of so few at most, and say little each."""
LEARNING = np.float32(0.2)
MOST_FORGOTTEN, MANY_PROMISED = 0.05, 200.0
"""Of what was promised and kept, per news; few are forgotten slowly, or luck would look like lies."""
PRIOR_SEQUENCES = 4
"""What was known before a probe weighs as much as so many sequences of it."""


class _News(msgspec.Struct, frozen=True):
    """Confidences of a committed step, until they may be used."""

    commit: StepCommit
    confidences: Float32s


class Confidences:
    """Survivals `[slots, drafts]` of the newest round that a plan may know."""

    def __init__(self, ledger: Ledger, slots: int, drafts: int) -> None:
        self._ledger = ledger
        self.mean: Float32s = np.full(drafts, FIRST_GUESS, dtype=np.float32).cumprod()
        self.trust = 1.0  # accepted drafts by those that were promised
        self._survival: Float32s = np.tile(self.mean, (slots, 1))
        self._places = np.arange(drafts)
        self._owners: Int64s = np.zeros(slots, dtype=np.int64)
        self._members: Members | None = None
        self._news: deque[_News] = deque()
        self._learned = 0
        self._promised = self._kept = 8.0  # as if that many had come true

    def worth(self, members: Members) -> Float32s:
        """Expected tokens `[b, D]` of every draft that may be verified, 0 of the others."""
        survival: Float32s = self._survival[members.rows]
        if self.trust != 1.0:
            survival = survival * np.float32(self.trust)
        return survival if members.capped is None else survival * members.capped

    def report(self, commit: StepCommit) -> None:
        """A step was committed; nobody knows of its confidences until their turn."""
        if commit.confidences is not None:
            self._news.append(_News(commit, commit.confidences))

    def catch_up(self, step: int, members: Members, *, few: bool, probe: bool) -> None:
        """Takes in what the plan of `step` may know. `few`: every news teaches; `probe`: and teaches much."""
        while self._news and self._news[0].commit.step <= step - 2:
            self._take_in(self._news.popleft(), few, probe)
        self._welcome(members)

    def forget_sequences(self) -> None:
        """What each sequence was known for is too old; all count as the mean."""
        self._survival[:] = self.mean

    def _take_in(self, news: _News, few: bool, probe: bool) -> None:
        layout, rows = news.commit.layout, self._ledger.rows(news.commit.layout)
        chances = survivals(news.confidences)
        self._learned += 1
        every = FEW_SEQUENCES if layout.decode_count <= FEW_SEQUENCES else LEARN_EVERY
        if few or self._learned % every == 0:
            self._learn(news.commit, chances, probe)
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
        self._survival[new] = self.mean
        self._owners[members.slots] = members.admissions

    def _learn(self, commit: StepCommit, chances: Float32s, probe: bool) -> None:
        """Compares a step's verified drafts with their survivals, which are still those of the round before
        its own."""
        layout, decodes = commit.layout, commit.layout.decode_count
        sampled = chances if decodes == layout.slots.size else chances[layout.samples]
        if len(sampled):
            count = len(sampled)
            weight = np.float32(count / (count + PRIOR_SEQUENCES)) if probe else LEARNING
            self.mean += (np.add.reduce(sampled, axis=0) / count - self.mean) * weight
        verified = self._places < commit.drafted[:decodes, None]
        promised = float(np.add.reduce(self._survival[layout.slots[:decodes]] * verified, axis=None))
        remembered = 1.0 - min(promised / MANY_PROMISED, MOST_FORGOTTEN)
        self._promised = remembered * self._promised + promised
        self._kept = remembered * self._kept + int(np.add.reduce(commit.accepted[:decodes]))
        self.trust = min(max(self._kept / max(self._promised, 1e-6), 0.1), 1.5)
