"""Marks of a card are looked for by a busy loop and waited for by a thread once the loop would sleep.

The card's events are replaced; everything else is what runs beside a card.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from stepahead.devices import nvidia_watch
from stepahead.devices.device import DeviceError
from stepahead.devices.nvidia_events import Mark
from stepahead.devices.nvidia_watch import Watcher


class CardEvent:
    """Reached when the test says so; knows who waited for it."""

    def __init__(self) -> None:
        self.flag, self.waits = threading.Event(), 0

    def query(self) -> bool:
        return self.flag.is_set()

    def synchronize(self) -> None:
        self.waits += 1
        self.flag.wait()


class Watched:
    """A watcher, its marks, and the order in which their tickets were settled."""

    def __init__(self) -> None:
        self.told: list[int] = []
        self.settled: list[int] = []
        self.watcher = Watcher("test", 0, self.told.append)
        self.events = [CardEvent() for _ in range(4)]
        self.marks = [Mark("test", serial, _as_cuda(event), None) for serial, event in enumerate(self.events)]

    def watch(self, serial: int) -> Any:
        ticket = self.watcher.watch(self.marks[serial], asyncio.get_running_loop())
        ticket.on_settled(lambda error: self.settled.append(serial))
        return ticket


def _as_cuda(event: CardEvent) -> Any:
    return event


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    made = Watched()
    yield made
    for event in made.events:
        event.flag.set()
    made.watcher.stop(10.0)
    assert not made.watcher._thread.is_alive()


async def test_a_busy_loop_finds_the_end_by_itself(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia_watch, "QUIET_NS", 0)  # every turn is busy
    ticket = watched.watch(0)
    for _ in range(20):
        await asyncio.sleep(0)
    assert not ticket.settled
    watched.events[0].flag.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ticket.settled
    assert watched.told == [0]
    assert watched.events[0].waits == 0
    assert not watched.watcher._looking  # and looks no further


async def test_a_loop_about_to_sleep_is_woken_by_the_thread(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_watch, "QUIET_NS", 1 << 62)  # no turn is busy
    ticket = watched.watch(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not watched.watcher._looking
    assert not ticket.settled
    watched.events[0].flag.set()
    await ticket
    assert watched.events[0].waits == 1
    assert watched.told == [0]


async def test_what_the_thread_waits_for_may_be_found_by_looking(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And older marks are settled before younger ones, whoever was asked first."""
    monkeypatch.setattr(nvidia_watch, "QUIET_NS", 1 << 62)
    second = watched.watch(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    monkeypatch.setattr(nvidia_watch, "QUIET_NS", 0)
    first = watched.watch(0)
    last = watched.watch(3)
    for event in watched.events[:2]:
        event.flag.set()
    await first
    await second
    assert watched.settled == [0, 1]
    assert not last.settled
    watched.events[3].flag.set()
    await last
    assert watched.settled == [0, 1, 3]


async def test_a_new_mark_from_a_callback_is_looked_for_once_a_turn(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_watch, "QUIET_NS", 0)
    looks, look = [0], watched.watcher._look

    def counted(loop: asyncio.AbstractEventLoop) -> None:
        looks[0] += 1
        look(loop)

    monkeypatch.setattr(watched.watcher, "_look", counted)
    watched.watch(0).on_settled(lambda error: watched.watch(1))
    watched.events[0].flag.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert watched.settled == [0]
    assert looks[0] <= 10
    watched.events[1].flag.set()
    for _ in range(2):
        await asyncio.sleep(0)
    assert watched.settled == [0, 1]


async def test_a_callback_that_raises_stops_no_looking(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_watch, "QUIET_NS", 0)
    raised: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: raised.append(str(context["exception"])))

    def fail(error: BaseException | None) -> None:
        raise ValueError("scripted")

    watched.watch(0).on_settled(fail)
    watched.events[0].flag.set()
    watched.events[1].flag.set()
    for _ in range(3):
        await asyncio.sleep(0)
    watched.watch(1)
    for _ in range(3):
        await asyncio.sleep(0)
    loop.set_exception_handler(None)
    assert raised == ["scripted"]
    assert watched.settled == [0, 1]


async def test_what_was_settled_elsewhere_is_looked_for_no_more(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_watch, "QUIET_NS", 0)
    ticket = watched.watch(0)
    watched.events[0].flag.set()
    assert ticket.look()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not watched.watcher._looking
    assert watched.watcher._looked_for == []
    assert watched.settled == [0]


async def test_closing_settles_what_nobody_was_told_of(watched: Watched) -> None:
    tickets = [watched.watch(serial) for serial in range(2)]
    watched.events[0].flag.set()
    watched.watcher.stop()
    watched.watcher.abandon(DeviceError("closed"))
    assert [ticket.settled for ticket in tickets] == [True, True]
    assert tickets[0].error is None
    assert isinstance(tickets[1].error, DeviceError)
    await asyncio.sleep(0)
    assert watched.settled == [0, 1]
