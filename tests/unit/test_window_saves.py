"""When a window state may be copied, and which commit proves the copy (valid for H when f <= H <= f')."""

from __future__ import annotations

import numpy as np
import pytest

from stepahead.engine.scheduling.ledger import DECODE, PREFILL, Ledger
from stepahead.engine.scheduling.window_saves import WindowSaves

from .core_driver import Setup

SLOT, KEY = 2, 7


def decoding(cached: int, inflight: int, published: int, *, drafts: int = 0, phase: int = DECODE) -> Ledger:
    """One sequence in slot 2: blocks of 4 tokens, `inflight` positions uncommitted."""
    ledger = Ledger(Setup(draft_tokens=drafts).limits())
    ledger.phase[SLOT], ledger.cached[SLOT], ledger.inflight[SLOT] = phase, cached, inflight
    ledger.published[SLOT], ledger.block_count[SLOT] = published, 12
    ledger.table[SLOT, :12] = np.arange(30, 42)
    ledger.tokens[SLOT, :50] = np.arange(50)
    return ledger


def saves_of(ledger: Ledger, next_position: int) -> WindowSaves:
    saves = WindowSaves(ledger)
    saves.occupy(SLOT, 0)
    saves.next_position[SLOT] = next_position
    return saves


def ids(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("drafts", "cached", "inflight", "next_position", "position"),
    [
        (0, 7, 1, 8, 8),  # the step in flight ends exactly at the boundary
        (0, 6, 1, 8, None),  # not yet
        (3, 6, 4, 8, 8),  # it may end at 7 to 10: worth a try
        (3, 8, 4, 8, 8),  # it starts at the boundary: certain
        (3, 4, 4, 8, 8),
        (3, 3, 4, 8, None),
        (3, 9, 4, 8, 12),  # the boundary is behind: the next one may be reached
        (3, 9, 4, 16, None),
        (0, 8, 0, 8, 8),  # all is committed: the state is the one at 8
        (3, 9, 0, 8, 8),  # f was at most 8, since nothing was due before
    ],
)
def test_a_copy_is_due_when_the_step_before_may_end_at_or_behind_the_boundary(
    drafts: int, cached: int, inflight: int, next_position: int, position: int | None
) -> None:
    saves = saves_of(decoding(cached, inflight, cached // 4 * 4, drafts=drafts), next_position)
    due = saves.due(ids(SLOT))
    assert due == ([] if position is None else [SLOT])
    if position is not None:
        assert saves.next_position[SLOT] == position


@pytest.mark.parametrize(
    ("end", "first", "due"), [(8, 8, True), (6, 6, False), (8, 12, True)], ids=["aligned", "not", "later"]
)
def test_a_prompt_is_kept_where_a_chunk_ends_on_a_boundary(end: int, first: int, due: bool) -> None:
    ledger = decoding(first - 2, 2, 0, phase=PREFILL)
    saves = saves_of(ledger, 0)
    saves.chunk_planned(SLOT, end)
    assert bool(saves.due(ids(SLOT))) == due


def test_a_copy_that_missed_is_made_again_into_the_same_slot_and_then_published() -> None:
    ledger = decoding(6, 4, 4, drafts=3)
    saves = saves_of(ledger, 8)
    assert saves.unprovided(saves.due(ids(SLOT))) == [SLOT]
    assert saves.copy([SLOT], ids(9), step=3) == ([(SLOT, 9)], [])
    assert saves.settle(2) == []
    ledger.cached[SLOT] = 7  # step 3 gave one token: the state at 8 was not there to be copied
    assert saves.settle(3) == []
    due = saves.due(ids(SLOT))
    assert (due, saves.unprovided(due)) == ([SLOT], [])
    assert saves.copy(due, ids(), step=4) == ([(SLOT, 9)], [])
    ledger.cached[SLOT] = 10
    assert saves.settle(4) == [SLOT]
    (publication,) = saves.publish(SLOT, KEY, b"")
    assert (publication.first_column, publication.blocks.tolist(), publication.snapshot) == (1, [31], 9)
    assert np.frombuffer(publication.tokens, dtype=np.int32).tolist() == [4, 5, 6, 7]
    assert (saves.next_position[SLOT], saves.retained[SLOT], ledger.published[SLOT]) == (12, 8, 8)
    assert (saves.held(), saves.vacate(SLOT)) == ([], [])


def test_a_boundary_reached_by_a_later_commit_does_not_prove_an_older_copy() -> None:
    """Two commits without a plan between them, as when the engine pauses."""
    ledger = decoding(6, 4, 4, drafts=3)
    saves = saves_of(ledger, 8)
    saves.copy(saves.due(ids(SLOT)), ids(9), step=3)
    ledger.cached[SLOT] = 7
    assert saves.settle(3) == []
    ledger.cached[SLOT], ledger.inflight[SLOT] = 10, 0
    assert saves.settle(4) == []
    assert [p.snapshot for p in saves.publish(SLOT, KEY, b"")] == [0]
    assert saves.held() == [9]
    assert saves.copy(saves.due(ids(SLOT)), ids(), step=4) == ([(SLOT, 9)], [SLOT])
    assert [p.snapshot for p in saves.publish(SLOT, KEY, b"")] == [9]


def test_a_state_of_committed_text_is_published_behind_its_blocks() -> None:
    ledger = decoding(8, 0, 8)
    saves = saves_of(ledger, 8)
    assert saves.copy(saves.due(ids(SLOT)), ids(9), step=3) == ([(SLOT, 9)], [SLOT])
    (publication,) = saves.publish(SLOT, KEY, b"x")
    assert (publication.first_column, publication.blocks.size, publication.tokens) == (2, 0, b"")
    assert (publication.snapshot, publication.salt) == (9, b"x")


def test_several_blocks_are_published_around_the_state_between_them() -> None:
    ledger = decoding(7, 4, 4, drafts=3)
    saves = saves_of(ledger, 8)
    saves.copy(saves.due(ids(SLOT)), ids(9), step=3)
    ledger.cached[SLOT] = 13
    assert saves.settle(3) == [SLOT]
    found = [(p.first_column, p.blocks.tolist(), p.snapshot) for p in saves.publish(SLOT, KEY, b"")]
    assert found == [(1, [31], 9), (2, [32], 0)]


def test_without_a_free_slot_the_boundary_is_passed_over() -> None:
    saves = saves_of(decoding(7, 1, 4), 8)
    assert saves.copy(saves.due(ids(SLOT)), ids(), step=3) == ([], [])
    assert saves.next_position[SLOT] == 12
    assert saves.held() == []


def test_who_leaves_gives_the_open_slot_back() -> None:
    saves = saves_of(decoding(7, 1, 4), 8)
    saves.copy(saves.due(ids(SLOT)), ids(9), step=3)
    assert saves.held() == [9]
    assert saves.vacate(SLOT) == [9]
    assert (saves.held(), saves.retained[SLOT]) == ([], 0)


def test_a_disabled_cache_keeps_nothing() -> None:
    ledger = Ledger(Setup(prefix_cache=False).limits())
    saves = WindowSaves(ledger)
    saves.occupy(SLOT, 0)
    saves.chunk_planned(SLOT, 8)
    ledger.cached[SLOT] = 8
    assert saves.publish(SLOT, KEY, b"") == []
    assert saves.next_position[SLOT] > 10**6
