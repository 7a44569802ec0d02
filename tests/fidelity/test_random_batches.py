"""Whatever a scheduler packs into its steps, each sequence gets what it would get alone.

Hypothesis draws schedules: which of four sequences are in a step, how many tokens each brings (a prompt chunk
or a few decode rows), and how many wrong drafts are verified and taken back first. Every row is compared with
the oracle, which never saw a batch, a chunk or a rejected token.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from .fast_path import FastModel, Fed, Session
from .oracle import Trace
from .small import EXACT, KEEP, Small, distance

LENGTH = 45
PROMPTS = [None, 30, 20, 44]  # in the truncated model; the first sequence is not truncated


@dataclass(frozen=True)
class Turn:
    """One sequence's part of a step."""

    sequence: int
    tokens: int
    wrong: int  # rejected rows verified before, one step earlier


turns = st.builds(Turn, st.integers(0, len(PROMPTS) - 1), st.integers(1, 20), st.integers(0, 5))
steps = st.lists(turns, min_size=1, max_size=len(PROMPTS), unique_by=lambda turn: turn.sequence)
schedules = st.lists(steps, min_size=1, max_size=8)


@dataclass(frozen=True)
class World:
    """A model, the texts of the sequences, and what the oracle says about each."""

    small: Small
    model: FastModel
    prompts: list[int | None]
    texts: list[list[int]]
    traces: list[Trace]

    @classmethod
    def build(cls, small: Small, model: FastModel, prompts: list[int | None]) -> World:
        texts = [small.text(LENGTH, seed) for seed in range(len(prompts))]
        traces = [
            small.oracle.forward(text, truncation=None if prompt is None else KEEP, prompt_length=prompt)
            for text, prompt in zip(texts, prompts, strict=True)
        ]
        return cls(small, model, prompts, texts, traces)


@pytest.fixture(scope="module")
def whole(small: Small) -> World:
    return World.build(small, small.fast, [None] * len(PROMPTS))


@pytest.fixture(scope="module")
def truncated(small: Small) -> World:
    return World.build(small, small.compact, PROMPTS)


def _run(world: World, schedule: list[list[Turn]]) -> None:
    world.model.reset()
    sessions = [world.model.session(prompt_length=prompt) for prompt in world.prompts]
    for step in schedule:
        _verify_and_reject(world, sessions, step)
        active = [turn for turn in step if sessions[turn.sequence].length < LENGTH]
        feeds = []
        for turn in active:
            session = sessions[turn.sequence]
            feeds.append((session, world.texts[turn.sequence][session.length :][: turn.tokens]))
        for turn, fed in zip(active, world.model.step(feeds) if feeds else [], strict=True):
            _check_rows(world, turn.sequence, fed)
    _check_drafts(world, sessions)


def _verify_and_reject(world: World, sessions: list[Session], step: list[Turn]) -> None:
    """Sequences that are past their prompt run rows that will be taken back."""
    speculating = [
        turn
        for turn in step
        if turn.wrong and sessions[turn.sequence].length > (world.prompts[turn.sequence] or 0)
    ]
    feeds = [(sessions[turn.sequence], world.small.text(turn.wrong, seed=99)) for turn in speculating]
    if feeds:
        world.model.step(feeds)
    for turn in speculating:
        sessions[turn.sequence].rollback(turn.wrong)


def _check_rows(world: World, sequence: int, fed: Fed) -> None:
    prompt = world.prompts[sequence]
    lowest = 0 if prompt is None else prompt - KEEP
    kept = [i for i, position in enumerate(fed.positions) if position >= lowest]
    if kept:
        positions = [fed.positions[i] for i in kept]
        assert distance(fed.logits[kept], world.traces[sequence].logits[positions]) < EXACT


def _check_drafts(world: World, sessions: list[Session]) -> None:
    ready = [i for i, session in enumerate(sessions) if session.length > (world.prompts[i] or 0)]
    if not ready:
        return
    drafts = world.model.draft([(sessions[i], 5 + i) for i in ready])
    for i, draft in zip(ready, drafts, strict=True):
        expected = world.small.oracle.draft(world.traces[i], sessions[i].length - 1, 5 + i)
        assert draft.tokens == expected.tokens
        assert distance(draft.logits, expected.logits) < EXACT


@settings(max_examples=20, deadline=None, derandomize=True)
@given(schedule=schedules)
def test_any_schedule_equals_each_sequence_alone(whole: World, schedule: list[list[Turn]]) -> None:
    _run(whole, schedule)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(schedule=schedules)
def test_any_schedule_with_truncated_prompts_equals_each_sequence_alone(
    truncated: World, schedule: list[list[Turn]]
) -> None:
    _run(truncated, schedule)
