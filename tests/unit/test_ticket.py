"""A ticket settles once, tells every watcher, and can be awaited before and after."""

from __future__ import annotations

import asyncio

import pytest

from stepahead.devices.device import DeviceError, Ticket


def test_watchers_hear_once_and_late_ones_at_once() -> None:
    heard: list[BaseException | None] = []
    ticket = Ticket()
    ticket.on_settled(heard.append)
    ticket.settle()
    ticket.settle(DeviceError("too late"))
    ticket.on_settled(heard.append)
    assert heard == [None, None]


async def test_awaiting_raises_the_error_before_and_after_settling() -> None:
    ticket = Ticket()
    asyncio.get_running_loop().call_soon(ticket.settle, DeviceError("gone"))
    for _ in range(2):
        with pytest.raises(DeviceError, match="gone"):
            await ticket


async def test_a_cancelled_waiter_leaves_the_ticket_usable() -> None:
    ticket = Ticket()

    async def wait() -> None:
        await ticket

    waiter = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    ticket.settle()
    await ticket
