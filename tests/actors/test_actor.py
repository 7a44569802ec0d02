"""Mailboxes are bounded, typed and counted; actors handle in order; a failure stops the group, once."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from stepahead.actors.actor import (
    BURST,
    Actor,
    ActorFailedError,
    Mailbox,
    MailboxClosedError,
    MailboxFullError,
    Reply,
    Supervisor,
)


class Number(msgspec.Struct, frozen=True):
    value: int


class Question(msgspec.Struct, frozen=True):
    value: int
    reply: Reply[int]


class Adder(Actor[Number | Question]):
    """Sums what it is told; answers with the sum; raises at a negative number."""

    name = "adder"
    accepts = (Number, Question)

    def __init__(self, capacity: int = 1000) -> None:
        super().__init__(capacity)
        self.seen: list[int] = []

    async def handle(self, message: Number | Question) -> None:
        if message.value < 0:
            raise ValueError("negative")
        self.seen.append(message.value)
        if isinstance(message, Question):
            message.reply.send(sum(self.seen))


def _box(capacity: int = 2) -> Mailbox[Number]:
    return Mailbox("box", (Number,), capacity)


def test_a_foreign_message_is_refused() -> None:
    with pytest.raises(TypeError, match="box does not take str"):
        _box().post("hello")  # type: ignore[arg-type]


def test_a_full_mailbox_refuses_a_post_and_counts_what_it_took() -> None:
    box = _box()
    box.post(Number(1))
    box.post(Number(2))
    with pytest.raises(MailboxFullError, match="holds its 2 messages"):
        box.post(Number(3))
    statistics = box.statistics()
    assert (statistics.depth, statistics.high_water, statistics.posted) == (2, 2, 2)


async def test_senders_wait_for_room_in_order() -> None:
    box = _box(1)
    await box.send(Number(0))
    senders = [asyncio.create_task(box.send(Number(i))) for i in (1, 2)]
    await asyncio.sleep(0)
    assert box.statistics().senders_waiting == 2
    assert [(await box.receive()).value for _ in range(3)] == [0, 1, 2]
    await asyncio.gather(*senders)


async def test_senders_leave_room_for_those_who_cannot_wait() -> None:
    box = _box(8)
    senders = [asyncio.create_task(box.send(Number(i))) for i in range(20)]
    await asyncio.sleep(0)
    assert (len(box), box.statistics().senders_waiting) == (6, 14)
    box.post(Number(100))
    box.post(Number(101))
    with pytest.raises(MailboxFullError):
        box.post(Number(102))
    received = [(await box.receive()).value for _ in range(22)]
    assert received == [*range(6), 100, 101, *range(6, 20)]
    await asyncio.gather(*senders)


async def test_room_given_to_a_cancelled_sender_goes_to_the_next() -> None:
    box = _box(1)
    box.post(Number(0))
    first, second = (asyncio.create_task(box.send(Number(i))) for i in (1, 2))
    await asyncio.sleep(0)
    assert (await box.receive()).value == 0  # room is offered to `first`, which is cancelled before it runs
    first.cancel()
    async with asyncio.timeout(1):
        assert (await box.receive()).value == 2
    await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_closing_frees_waiting_senders_and_hands_back_the_rest() -> None:
    box = _box(1)
    box.post(Number(0))
    sender = asyncio.create_task(box.send(Number(1)))
    await asyncio.sleep(0)
    assert [message.value for message in box.close()] == [0]
    with pytest.raises(MailboxClosedError, match="box has ended"):
        await sender


async def test_an_actor_handles_in_order_and_answers() -> None:
    adder = Adder()
    supervisor = Supervisor([adder], lambda error: None)
    running = asyncio.create_task(supervisor.run())
    for i in range(10):
        adder.mailbox.post(Number(i))
    question = Question(0, Reply())
    adder.mailbox.post(question)
    assert await question.reply == 45
    supervisor.stop()
    await running
    assert adder.seen == [*range(10), 0]
    assert supervisor.failure is None


async def test_a_backlog_lets_the_loop_run_others() -> None:
    adder = Adder()
    for i in range(3 * BURST):
        adder.mailbox.post(Number(i))
    supervisor = Supervisor([adder], lambda error: None)
    running = asyncio.create_task(supervisor.run())
    progress = []
    while len(adder.seen) < 3 * BURST:
        await asyncio.sleep(0)
        progress.append(len(adder.seen))
    supervisor.stop()
    await running
    assert {BURST, 2 * BURST} <= set(progress)


async def test_the_first_failure_stops_the_group_and_is_reported_once() -> None:
    first, second = Adder(), Adder()
    reported: list[ActorFailedError] = []
    supervisor = Supervisor([first, second], reported.append)
    running = asyncio.create_task(supervisor.run())
    await asyncio.sleep(0)
    first.mailbox.post(Number(-1))
    second.mailbox.post(Number(-1))
    async with asyncio.timeout(1):
        await running
    assert len(reported) == 1
    assert isinstance(reported[0].__cause__, ValueError)
    assert supervisor.failure is reported[0]
    with pytest.raises(MailboxClosedError):
        second.mailbox.post(Number(1))


async def test_stopping_before_the_start_ends_at_once() -> None:
    adder = Adder()
    supervisor = Supervisor([adder], lambda error: None)
    supervisor.stop()
    async with asyncio.timeout(1):
        await supervisor.run()


async def test_cancelling_the_host_task_is_passed_on() -> None:
    adder = Adder()
    running = asyncio.create_task(Supervisor([adder], lambda error: None).run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    with pytest.raises(MailboxClosedError):
        adder.mailbox.post(Number(1))
