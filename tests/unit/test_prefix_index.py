"""What the prefix index finds, forgets, and refuses to confuse."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from stepahead.engine.cache import prefix_index
from stepahead.engine.cache.prefix_index import PrefixIndex
from stepahead.engine.cache.reservation import Publication
from stepahead.engine.model.runner import Int32s

BLOCK = 4


def ids(*values: int) -> Int32s:
    return np.array(values, dtype=np.int32)


def tokens(count: int, first: int = 0) -> bytes:
    return np.arange(first, first + count, dtype=np.int32).tobytes()


def publication(
    key: int,
    blocks: list[int],
    *,
    first_column: int = 0,
    snapshot: int = 0,
    salt: bytes = b"",
    first: int = 0,
) -> Publication:
    """Blocks of the sequence whose tokens count up from `first`."""
    return Publication(
        sequence_key=key,
        salt=salt,
        first_column=first_column,
        tokens=tokens(BLOCK * len(blocks), first + BLOCK * first_column),
        blocks=np.array(blocks, dtype=np.int32),
        snapshot=snapshot,
    )


def filled() -> PrefixIndex:
    """Blocks 1, 2, 3 of tokens 0..11, states 50 behind block 1 and 51 behind block 3."""
    index = PrefixIndex(BLOCK)
    assert index.publish(publication(7, [1], snapshot=50)) == []
    assert index.publish(publication(7, [2, 3], first_column=1, snapshot=51)) == []
    return index


@pytest.mark.parametrize(
    ("prompt", "limit", "blocks", "snapshot"),
    [
        (tokens(20), 19, [1, 2, 3], 51),
        (tokens(12), 12, [1, 2, 3], 51),
        (tokens(12), 11, [1], 50),  # one row must be computed: the state behind block 3 is beyond the limit
        (tokens(11), 10, [1], 50),  # block 2 has no state
        (tokens(5), 4, [1], 50),
        (tokens(4), 3, [], 0),
        (tokens(3), 2, [], 0),
        (tokens(4) + tokens(8, 90), 11, [1], 50),
        (tokens(12, 1), 12, [], 0),
    ],
)
def test_a_hit_is_the_longest_prefix_with_a_state(
    prompt: bytes, limit: int, blocks: list[int], snapshot: int
) -> None:
    hit = filled().match(prompt, b"", limit)
    assert (hit.blocks.tolist(), hit.snapshot) == (blocks, snapshot)


def test_other_salts_never_hit() -> None:
    assert filled().match(tokens(12), b"tenant", 12).snapshot == 0


def test_tokens_are_compared_so_a_colliding_digest_shows_nobody_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prefix_index, "chain_digest", lambda salt, parent, tokens: b"same")
    index = PrefixIndex(BLOCK)
    index.publish(publication(1, [1], snapshot=50))
    for salt, prompt in ((b"", tokens(4, 90)), (b"tenant", tokens(4))):
        assert index.match(prompt, salt, 4).snapshot == 0
    assert index.match(tokens(4), b"", 4).snapshot == 50
    # the second block collides with the first: it stays private, its state comes back
    assert index.publish(publication(1, [2], first_column=1, snapshot=51)) == [51]
    assert index.release(ids(2, 1)).tolist() == [2]


def test_salts_and_tokens_cannot_trade_bytes() -> None:
    digests = {
        prefix_index.chain_digest(b"", b"", b"ab"),
        prefix_index.chain_digest(b"a", b"", b"b"),
        prefix_index.chain_digest(b"ab", b"", b""),
    }
    assert len(digests) == 3


def test_content_that_is_cached_already_stays_where_it_is() -> None:
    index = filled()
    assert index.publish(publication(8, [4, 5, 6], snapshot=52)) == [52]
    assert index.release(ids(6, 5, 4)).tolist() == [6, 5, 4]  # private, without content
    assert index.match(tokens(12), b"", 12).blocks.tolist() == [1, 2, 3]


def test_a_duplicate_brings_the_state_the_first_one_lacked() -> None:
    index = filled()
    assert index.publish(publication(8, [4, 5], snapshot=52)) == []
    assert index.match(tokens(9), b"", 8).snapshot == 52


def test_a_state_may_follow_its_blocks() -> None:
    index = PrefixIndex(BLOCK)
    index.publish(publication(7, [1, 2]))
    assert index.publish(publication(7, [], first_column=2, snapshot=50)) == []
    assert index.match(tokens(9), b"", 8).snapshot == 50
    assert index.publish(publication(7, [], first_column=1, snapshot=51)) == [51]  # too late for block 1


def test_publications_continue_behind_a_hit() -> None:
    index = filled()
    hit = index.match(tokens(9), b"", 4)
    index.adopt(8, hit.blocks)
    index.publish(publication(8, [4], first_column=1, snapshot=52))
    assert index.match(tokens(9), b"", 8).blocks.tolist() == [1, 2]


def test_the_longest_idle_leaf_is_evicted_first() -> None:
    index = filled()
    assert index.evict(1)[0].tolist() == []
    assert index.release(ids(3, 2, 1)).tolist() == []
    assert index.idle == 3
    evicted, snapshots = index.evict(1)
    assert (evicted.tolist(), snapshots) == ([3], [51])
    assert index.match(tokens(12), b"", 12).blocks.tolist() == [1]


def test_a_hit_takes_its_blocks_out_of_the_idle_ones() -> None:
    index = filled()
    index.release(ids(3, 2, 1))
    index.adopt(9, index.match(tokens(12), b"", 12).blocks)
    assert (index.idle, index.evict(3)[0].tolist()) == (0, [])


def test_evicting_an_inner_block_forgets_all_behind_it() -> None:
    index = PrefixIndex(BLOCK)
    index.publish(publication(1, [1, 2]))
    index.publish(publication(2, [5, 6, 7], snapshot=52))  # 5 and 6 are private, 7 continues behind block 2
    index.release(ids(2, 1))
    evicted, snapshots = index.evict(1)
    assert (evicted.tolist(), snapshots) == ([2], [52])
    assert index.publish(publication(2, [8], first_column=3, snapshot=53)) == [53]  # its chain is gone
    assert index.release(ids(8, 7, 6, 5)).tolist() == [8, 7, 6, 5]


@pytest.mark.parametrize(
    ("hit_first", "given_up"),
    [(False, [50, 51]), (True, [51, 50])],
)
def test_older_states_of_a_sequence_go_first_unless_somebody_hit_them(
    hit_first: bool, given_up: list[int]
) -> None:
    index = filled()
    if hit_first:
        assert index.match(tokens(5), b"", 4).snapshot == 50
    assert [index.evict_snapshot(), index.evict_snapshot()] == given_up
    assert index.evict_snapshot() == 0
    assert index.match(tokens(12), b"", 12).snapshot == 0


def test_a_newer_sequence_outlives_the_cold_states_of_an_older_one() -> None:
    index = filled()
    index.publish(publication(8, [8], snapshot=60, first=500))
    assert [index.evict_snapshot() for _ in range(3)] == [50, 51, 60]


def test_clearing_forgets_everything_and_later_publications_of_running_sequences() -> None:
    index = filled()
    index.release(ids(3))
    blocks, snapshots = index.clear()
    assert (blocks.tolist(), snapshots) == ([3], [50, 51])
    assert index.match(tokens(12), b"", 12).snapshot == 0
    assert index.publish(publication(7, [9], first_column=3, snapshot=52)) == [52]
    assert index.release(ids(9, 2, 1)).tolist() == [9, 2, 1]
    index.forget(7)
    assert index.publish(publication(7, [1], snapshot=53)) == []


def test_forgetting_ends_the_bookkeeping_of_a_sequence() -> None:
    index = filled()
    assert index.publishers == 1
    index.forget(7)
    index.forget(7)
    assert index.publishers == 0


def chain(index: PrefixIndex, key: int, blocks: list[int], *, first: int, lasting: bool = False) -> None:
    """A sequence that published these blocks and left."""
    published = publication(key, blocks, snapshot=100 + key, first=first)
    index.publish(msgspec.structs.replace(published, lasting=lasting))
    index.forget(key)
    index.release(ids(*reversed(blocks)))


def test_what_agents_used_is_evicted_after_what_chats_used() -> None:
    index = PrefixIndex(BLOCK)
    chain(index, 1, [1, 2], first=0, lasting=True)
    chain(index, 2, [3, 4, 5, 6], first=100)
    assert index.evict(2)[0].tolist() == [6, 5]
    assert index.match(tokens(8), b"", 8).blocks.tolist() == [1, 2]


def test_agents_that_have_gone_leave_half_of_the_idle_blocks_to_chats() -> None:
    index = PrefixIndex(BLOCK)
    chain(index, 1, [1, 2, 3], first=0, lasting=True)
    chain(index, 2, [4], first=100)
    assert [index.evict(1)[0].tolist() for _ in range(4)] == [[3], [2], [4], [1]]


def test_a_hit_of_an_agent_makes_blocks_lasting() -> None:
    index = PrefixIndex(BLOCK)
    chain(index, 1, [1], first=0)
    chain(index, 2, [2], first=100)
    index.adopt(3, ids(1), lasting=True)
    index.release(ids(1))
    assert index.evict(1)[0].tolist() == [2]


def test_an_agent_that_repeats_idle_blocks_makes_them_lasting() -> None:
    index = PrefixIndex(BLOCK)
    chain(index, 1, [1], first=0)
    chain(index, 2, [2], first=100)
    chain(index, 3, [3], first=0, lasting=True)  # the same content as block 1; its own block stays private
    assert index.evict(1)[0].tolist() == [2]


def turn(index: PrefixIndex, key: int, hit: list[int], blocks: list[int], snapshot: int, **kind: Any) -> None:
    index.adopt(key, ids(*hit))
    published = publication(key, blocks, first_column=len(hit), snapshot=snapshot)
    index.publish(msgspec.structs.replace(published, **kind))
    index.forget(key)


def test_the_next_turn_of_a_session_gives_up_the_state_of_the_last() -> None:
    index = PrefixIndex(BLOCK)
    turn(index, 1, [], [1], 51, session="a")
    index.publish(publication(9, [9], snapshot=59, first=500))  # somebody else's, kept later than the first
    turn(index, 2, [1], [2], 52, session="a")
    assert [index.evict_snapshot() for _ in range(3)] == [51, 59, 52]


@pytest.mark.parametrize("kind", [{"session": "b"}, {}])
def test_other_sessions_give_up_nothing(kind: dict[str, str]) -> None:
    index = PrefixIndex(BLOCK)
    index.publish(publication(9, [9], snapshot=59, first=500))
    turn(index, 1, [], [1], 51, session="a")
    turn(index, 2, [1], [2], 52, **kind)
    assert index.evict_snapshot() == 59


def test_two_conversations_under_one_name_leave_each_other_alone() -> None:
    index = PrefixIndex(BLOCK)
    index.publish(publication(9, [9], snapshot=59, first=500))
    turn(index, 1, [], [1], 51, session="a")
    index.publish(msgspec.structs.replace(publication(2, [2], snapshot=52, first=300), session="a"))
    assert index.evict_snapshot() == 59


def test_a_session_whose_state_was_given_up_starts_again() -> None:
    index = PrefixIndex(BLOCK)
    turn(index, 1, [], [1], 51, session="a")
    assert index.evict_snapshot() == 51
    turn(index, 2, [], [1], 53, session="a")
    turn(index, 3, [1], [2], 54, session="a")
    index.clear()
    turn(index, 4, [], [1], 55, session="a")
    assert index.match(tokens(4), b"", 4).snapshot == 55
