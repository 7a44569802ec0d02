"""Callers that wait for room keep their turn, and whoever leaves is answered."""

from __future__ import annotations

import msgspec

from stepahead import SamplingParams
from stepahead.actors.actor import Reply
from stepahead.actors.messages import RequestSubmitted
from stepahead.actors.outside_queue import OutsideQueue
from tests.actors.hashed_engine import as_request


def submission(*keys: int, deadline: float | None = None) -> RequestSubmitted:
    base = as_request([3], SamplingParams(seed=1))
    requests = tuple(
        msgspec.structs.replace(base, key=key, group=keys[0], leader=keys[0], deadline=deadline)
        for key in keys
    )
    return RequestSubmitted(requests=requests, reply=Reply())


async def test_submissions_leave_in_order_and_whole() -> None:
    queue = OutsideQueue()
    assert not queue
    queue.push(submission(1, 2, 3))
    queue.push(submission(4))
    assert (queue.sequences, queue.next_size, queue.keys()) == (4, 3, (1, 2, 3, 4))
    assert [request.key for request in queue.pop().requests] == [1, 2, 3]
    assert (queue.next_size, queue.keys()) == (1, (4,))


async def test_a_caller_that_leaves_is_answered_and_only_by_its_first_key() -> None:
    queue = OutsideQueue()
    waiting = submission(1, 2)
    queue.push(waiting)
    queue.remove(2)
    queue.remove(9)
    assert queue
    queue.remove(1)
    assert not queue
    await waiting.reply


async def test_deadlines_pass_for_whole_requests() -> None:
    queue = OutsideQueue()
    first, second = submission(1, 2, deadline=5.0), submission(3, deadline=3.0)
    queue.push(first)
    queue.push(second)
    queue.push(submission(4))
    assert queue.next_deadline() == 3.0
    assert queue.expire(2.0) == ()
    assert queue.expire(5.0) == (3, 1, 2)
    await first.reply
    await second.reply
    assert queue.next_deadline() is None
    assert queue.keys() == (4,)


async def test_letting_in_forgets_the_deadline() -> None:
    queue = OutsideQueue()
    queue.push(submission(1, deadline=5.0))
    queue.pop()
    assert queue.next_deadline() is None
    assert queue.expire(9.0) == ()
