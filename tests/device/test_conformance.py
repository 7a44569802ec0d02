"""The contract of `devices/device.py`, checked on every device that exists here."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import pytest_asyncio

from stepahead.devices.device import DeviceError, OutOfMemoryError

from .subjects import ON_CARDS, SUBJECTS, Subject

KINDS = [pytest.param(name, marks=[pytest.mark.gpu] if name in ON_CARDS else []) for name in sorted(SUBJECTS)]


@pytest_asyncio.fixture(params=KINDS)
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    opened = SUBJECTS[request.param](tmp_path)
    yield opened
    opened.close()


async def test_work_runs_in_order(subject: Subject) -> None:
    for value in range(50):
        subject.append(value)
    await subject.watch()
    assert subject.log() == list(range(50))


async def test_marks_tell_exactly_what_has_ended(subject: Subject) -> None:
    subject.append(1)
    first = subject.watch()
    await first
    assert subject.log() == [1]
    subject.append(2)
    await subject.watch()
    assert subject.log() == [1, 2]
    assert first.settled
    assert first.error is None


async def test_a_mark_of_an_empty_queue_is_reached(subject: Subject) -> None:
    await subject.watch()


async def test_enqueue_does_not_wait(subject: Subject) -> None:
    await subject.watch()  # a process has started
    if subject.runs_on_enqueue:
        pytest.skip("its callables run inside enqueue, by contract")
    subject.append(1)
    ticket = subject.watch()
    assert not ticket.settled
    await ticket


async def test_watchers_are_called_once_in_stream_order(subject: Subject) -> None:
    settled: list[int] = []
    tickets = []
    for value in range(20):
        subject.append(value)
        tickets.append(subject.watch())
    for value, ticket in reversed(list(enumerate(tickets))):
        ticket.on_settled(lambda error, value=value: settled.append(value))
    await tickets[-1]
    assert settled == list(range(20))


async def test_looking_settles_no_earlier_and_no_later_than_the_end(subject: Subject) -> None:
    await subject.watch()
    subject.append(1)
    ticket, heard = subject.watch(), list[BaseException | None]()
    ticket.on_settled(heard.append)
    if ticket.look():
        assert subject.log() == [1]
        assert heard == [None]
        assert not ticket.look()  # only the first time
    await ticket
    assert subject.log() == [1]
    assert ticket.reached
    assert not ticket.look()
    await anyio.lowlevel.checkpoint()  # a device that comes late calls nobody twice
    assert heard == [None]


async def test_the_first_error_poisons_the_stream(subject: Subject) -> None:
    subject.append(1)
    before = subject.watch()
    await before
    subject.fail()
    failed = subject.watch()
    with pytest.raises(DeviceError, match="scripted") as caught:
        await failed
    assert caught.value.__cause__ is not None
    assert "scripted" in str(caught.value.__cause__)
    with pytest.raises(DeviceError, match="scripted"):
        subject.append(2)
    assert subject.log() == [1]
    assert before.error is None


async def test_work_queued_behind_a_failure_is_skipped(subject: Subject) -> None:
    await subject.watch()
    if subject.runs_on_enqueue:
        pytest.skip("nothing can be queued behind a failure that has already happened")
    subject.append(1)
    subject.fail()
    subject.append(2)
    with pytest.raises(DeviceError):
        await subject.watch()
    assert subject.log() == [1]


async def test_no_room_has_an_error_of_its_own(subject: Subject) -> None:
    subject.fail_for_room()
    with pytest.raises(OutOfMemoryError):
        await subject.watch()


async def test_close_settles_every_ticket_and_refuses_work(subject: Subject) -> None:
    await subject.watch()
    tickets = []
    for value in range(5):
        subject.append(value)
        tickets.append(subject.watch())
    subject.close()
    for ticket in tickets:  # of those already reached, the loop may not have heard yet; it will
        with contextlib.suppress(DeviceError):
            await ticket
    with pytest.raises(DeviceError, match="closed"):
        subject.append(9)
    subject.close()


async def test_a_ticket_nobody_awaits_is_silent(subject: Subject) -> None:
    subject.fail()
    subject.watch()
    with pytest.raises(DeviceError):
        await subject.watch()


async def test_a_cancelled_wait_leaves_the_ticket_alone(subject: Subject) -> None:
    subject.append(1)
    ticket = subject.watch()
    with anyio.CancelScope() as scope:
        scope.cancel()
        await ticket
    await ticket
    assert subject.log() == [1]
