"""One transaction serves releases, growth, states and candidates in that order, never more than there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepahead.engine.cache.core import CacheCore
from stepahead.engine.cache.reservation import Candidate, Demand, Grant, Publication
from stepahead.engine.model.runner import Int32s

from .core_driver import Setup

BLOCK = 4


def ids(*values: int) -> Int32s:
    return np.array(values, dtype=np.int32)


def make_cache(**fields: Any) -> CacheCore:
    """10 grantable blocks of 4 tokens, 2 state slots (5 and 6), a lookahead of 2 tokens."""
    setup = Setup(**{"blocks": 11, "snapshots": 2, "block_tokens": BLOCK, **fields})
    return CacheCore(setup.shape(), setup.facts(), setup.prefix_cache)


def candidate(key: int, length: int, *, rows: int = 100, headroom: int = 0) -> Candidate:
    tokens = np.arange(length, dtype=np.int32).tobytes()
    return Candidate(sequence_key=key, tokens=tokens, salt=b"", chunk_rows=rows, headroom=headroom)


def reserve(cache: CacheCore, **fields: Any) -> Grant:
    grant = cache.reserve(Demand(**fields))
    cache.check()
    return grant


def keep_prefix(cache: CacheCore, length: int = 8) -> Int32s:
    """Sequence 1 runs a prompt of tokens 0, 1, ... and keeps its full blocks and the state behind."""
    grant = reserve(cache, candidates=(candidate(1, length + 1),), snapshots=1)
    blocks = grant.admitted[0].blocks
    cache.publish(
        [
            Publication(
                sequence_key=1,
                salt=b"",
                first_column=0,
                tokens=np.arange(length, dtype=np.int32).tobytes(),
                blocks=blocks[: length // BLOCK],
                snapshot=int(grant.snapshot_slots[0]),
            )
        ]
    )
    return blocks


@pytest.mark.parametrize(
    ("growth", "grown", "granted"),
    [((1, 2, 3), 3, 6), ((10,), 1, 10), ((11,), 0, 0), ((4, 4, 4), 2, 8), ((6, 5, 1), 1, 6)],
)
def test_growth_is_served_from_the_front_until_it_does_not_fit(
    growth: tuple[int, ...], grown: int, granted: int
) -> None:
    cache = make_cache()
    grant = reserve(cache, growth=ids(*growth), snapshots=1, candidates=(candidate(1, 1),))
    assert (grant.grown, grant.growth_blocks.size, grant.free) == (
        grown,
        granted,
        10 - granted - len(grant.admitted),
    )
    short = grown < len(growth)
    assert (grant.snapshot_slots.size == 0) == short  # a shortage ends serving
    assert not (short and grant.admitted)


def test_blocks_given_back_can_be_granted_in_the_same_transaction() -> None:
    cache = make_cache()
    held = reserve(cache, growth=ids(10)).growth_blocks
    assert reserve(cache, growth=ids(3)).grown == 0
    assert sorted(reserve(cache, released=held[:3], growth=ids(3)).growth_blocks) == sorted(held[:3])


@pytest.mark.parametrize(
    ("length", "rows", "reserved", "fits", "blocks"),
    [
        (1, 100, 0, True, 1),
        (38, 100, 0, True, 10),  # 38 + 2 tokens of lookahead fill 10 blocks exactly
        (39, 100, 0, False, 0),
        (38, 5, 0, True, 2),  # the whole must fit, the first chunk is taken
        (38, 5, 1, False, 0),
        (34, 8, 1, True, 2),
    ],
)
def test_a_candidate_needs_room_for_all_and_takes_its_first_chunk(
    length: int, rows: int, reserved: int, fits: bool, blocks: int
) -> None:
    grant = reserve(make_cache(), candidates=(candidate(1, length, rows=rows),), reserved=reserved)
    assert bool(grant.admitted) == fits
    if fits:
        assert (grant.admitted[0].blocks.size, grant.admitted[0].hit_tokens) == (blocks, 0)


def test_what_one_candidate_was_promised_the_next_cannot_have() -> None:
    candidates = (candidate(1, 30, rows=4), candidate(2, 9), candidate(3, 1))
    grant = reserve(make_cache(), candidates=candidates)
    assert [entry.sequence_key for entry in grant.admitted] == [1, 3]
    assert grant.free == 8


@pytest.mark.parametrize(
    ("headrooms", "admitted"),
    [((0, 0, 0), [1, 2, 3]), ((5, 0, 0), [1, 3]), ((2, 2, 1), [1, 2]), ((8, 0, 0), [2, 3])],
)
def test_room_for_what_candidates_will_generate_is_promised_too(
    headrooms: tuple[int, ...], admitted: list[int]
) -> None:
    candidates = tuple(
        candidate(key, length, headroom=headroom)
        for key, length, headroom in zip((1, 2, 3), (10, 10, 2), headrooms, strict=True)
    )
    grant = reserve(make_cache(), candidates=candidates)
    assert [entry.sequence_key for entry in grant.admitted] == admitted


def test_a_hit_shares_blocks_and_names_the_state_to_restore() -> None:
    cache = make_cache()
    kept = keep_prefix(cache)
    grant = reserve(cache, candidates=(candidate(2, 12),))
    admitted = grant.admitted[0]
    assert (admitted.hit_tokens, admitted.snapshot) == (8, 5)
    assert admitted.blocks.tolist() == [*kept[:2].tolist(), 4]
    assert cache.references()[kept[:2]].tolist() == [2, 2]


@pytest.mark.parametrize(("hit_margin", "hit"), [(1, 4), (4, 4), (5, 0)])
def test_a_fully_cached_aligned_prompt_still_computes_its_margin(hit_margin: int, hit: int) -> None:
    cache = make_cache(hit_margin=hit_margin)
    keep_prefix(cache, length=4)
    assert reserve(cache, candidates=(candidate(2, 8),)).admitted[0].hit_tokens == hit
    assert reserve(cache, candidates=(candidate(3, 4),)).admitted[0].hit_tokens == 0


def test_cached_blocks_count_as_free_and_are_evicted_last() -> None:
    cache = make_cache()
    kept = keep_prefix(cache)
    assert reserve(cache, released=kept[::-1], closed=(1,)).free == 10
    assert cache.statistics().cached == 2
    others = reserve(cache, growth=ids(8)).growth_blocks
    assert not set(others.tolist()) & set(kept[:2].tolist())
    assert cache.statistics().cached == 2
    reserve(cache, growth=ids(1))
    assert (cache.statistics().cached, cache.statistics().snapshots_free) == (1, 2)  # the state went with it


def test_a_hit_on_idle_blocks_uses_up_what_is_free() -> None:
    cache = make_cache()
    kept = keep_prefix(cache)
    reserve(cache, released=kept[::-1], closed=(1,))
    reserve(cache, growth=ids(7))
    assert reserve(cache, candidates=(candidate(2, 11),)).admitted == ()  # 4 blocks, 2 of them cached; 3 free
    assert reserve(cache, candidates=(candidate(2, 10),)).admitted[0].hit_tokens == 8


def test_states_are_evicted_before_hits_are_looked_up() -> None:
    cache = make_cache()
    keep_prefix(cache)
    grant = reserve(cache, snapshots=2, candidates=(candidate(2, 12),))
    assert sorted(grant.snapshot_slots.tolist()) == [5, 6]
    assert grant.admitted[0].snapshot == 0


def test_fewer_states_than_asked_are_granted_when_others_hold_them() -> None:
    cache = make_cache()
    assert reserve(cache, snapshots=3).snapshot_slots.size == 2
    assert reserve(cache, snapshots=1).snapshot_slots.size == 0
    assert reserve(cache, returned_snapshots=ids(6), snapshots=1).snapshot_slots.tolist() == [6]


def test_without_a_prefix_cache_nothing_is_kept() -> None:
    cache = make_cache(prefix_cache=False)
    assert reserve(cache, snapshots=2).snapshot_slots.size == 0
    grant = reserve(cache, candidates=(candidate(1, 9),))
    cache.publish(
        [
            Publication(
                sequence_key=1,
                salt=b"",
                first_column=0,
                tokens=np.arange(8, dtype=np.int32).tobytes(),
                blocks=grant.admitted[0].blocks[:2],
                snapshot=0,
            )
        ]
    )
    reserve(cache, released=grant.admitted[0].blocks, closed=(1,))
    statistics = cache.statistics()
    assert (statistics.cached, statistics.free, statistics.publishers) == (0, 10, 0)


def test_reset_forgets_content_and_keeps_what_runs() -> None:
    cache = make_cache()
    kept = keep_prefix(cache)
    cache.reset()
    cache.check()
    assert cache.statistics().free == 7
    assert reserve(cache, candidates=(candidate(2, 12),)).admitted[0].hit_tokens == 0
    reserve(cache, released=kept, closed=(1,))
    assert (cache.statistics().cached, cache.statistics().snapshots_free) == (0, 2)
