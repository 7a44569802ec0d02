"""What only a CUDA device does: graphs, the guard, memory, streams that wait for each other on the card.

The first tests need no card. Those marked `gpu` run under pytest where one is, and in
`scripts/gpu/check_device.py` where pytest's plugins are missing.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import sys
import threading
import time

import pytest
import torch

from stepahead import Engine
from stepahead.devices.device import DeviceError, OutOfMemoryError, Ticket
from stepahead.devices.nvidia import SWITCH_SECONDS, NvidiaDevice, _SwitchInterval
from stepahead.devices.nvidia_errors import DeviceUnavailableError, SynchronisationError
from stepahead.engine.errors import ConfigError

HERE = torch.cuda.is_available()


@pytest.mark.skipif(HERE, reason="a card is here")
def test_a_missing_card_is_named_by_the_call_that_asked() -> None:
    with pytest.raises(DeviceUnavailableError, match="cuda:0"):
        NvidiaDevice()


@pytest.mark.skipif(HERE, reason="a card is here")
async def test_an_engine_without_its_card_does_not_open() -> None:
    with pytest.raises(ConfigError, match="device='cuda'") as caught:
        await Engine.open(device="cuda")
    assert isinstance(caught.value.__cause__, DeviceUnavailableError)


async def test_unknown_devices_are_listed_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'cpu', 'cuda'"):
        await Engine.open(device="abacus")


def ticket(device: NvidiaDevice, name: str = "compute") -> Ticket:
    return device.watch(device.stream(name).record(), asyncio.get_running_loop())


def busy_kernel() -> None:
    """About a second of the card's time."""
    torch.cuda._sleep(2_000_000_000)


@pytest.mark.gpu
async def test_the_host_does_not_wait_for_a_long_kernel() -> None:
    device = NvidiaDevice()
    began = time.perf_counter()
    device.compute.enqueue(busy_kernel, "long")
    reached = ticket(device)
    assert time.perf_counter() - began < 0.3
    assert not reached.settled
    await reached
    assert time.perf_counter() - began > 0.3
    device.close()


@pytest.mark.gpu
async def test_a_hidden_wait_names_the_work_that_made_it() -> None:
    device = NvidiaDevice()
    device.compute.enqueue(lambda: torch.zeros(1, device="cuda").item(), "sample:7")
    with pytest.raises(SynchronisationError, match="sample:7"):
        await ticket(device)
    device.close()
    assert torch.cuda.get_sync_debug_mode() == 0
    unguarded = NvidiaDevice(guard=False)
    unguarded.compute.enqueue(lambda: torch.zeros(1, device="cuda").item(), "sample:7")
    await ticket(unguarded)
    unguarded.close()


@pytest.mark.gpu
async def test_a_graph_replays_on_what_its_buffers_hold_then() -> None:
    device = NvidiaDevice()
    with device.placing():
        source, target = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    graph = device.capture(lambda: target.copy_(source * 2 + 1), "twice and one")
    pinned = torch.from_numpy(device.staging(4000).host.view("float32"))

    def work() -> None:
        source.fill_(20.0)
        graph.replay()
        pinned.copy_(target, non_blocking=True)

    device.compute.enqueue(work, "replay")
    await ticket(device)
    assert (pinned == 41).all()
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        graph.replay()


@pytest.mark.gpu
async def test_what_cannot_be_captured_is_named_and_the_stream_goes_on() -> None:
    device = NvidiaDevice()
    with pytest.raises(DeviceError, match="a step of 3 rows"):
        device.capture(lambda: torch.zeros(1, device="cuda").item(), "a step of 3 rows")
    with device.placing():
        x = torch.zeros(1, device="cuda")
    device.compute.enqueue(lambda: x.add_(1), "after")
    await ticket(device)
    device.capture(lambda: x.add_(1), "a good one")
    device.close()


@pytest.mark.gpu
async def test_no_room_is_typed_wherever_it_is_missing() -> None:
    device = NvidiaDevice()
    beyond = device.memory().total // 2
    with pytest.raises(OutOfMemoryError), device.placing():
        _ = [torch.empty(beyond, dtype=torch.uint8, device="cuda") for _ in range(3)]
    with pytest.raises(OutOfMemoryError, match="a huge step"):
        device.capture(lambda: torch.empty(3 * beyond, dtype=torch.uint8, device="cuda"), "a huge step")
    device.compute.enqueue(lambda: torch.empty(3 * beyond, dtype=torch.uint8, device="cuda"), "forward:3")
    with pytest.raises(OutOfMemoryError, match="forward:3"):
        await ticket(device)
    device.close()


@pytest.mark.gpu
async def test_streams_wait_for_each_other_on_the_card() -> None:
    device = NvidiaDevice()
    copies = device.stream("copies")
    with device.placing():
        x = torch.zeros(1, device="cuda")
    await ticket(device)

    def slow() -> None:
        busy_kernel()
        x.fill_(5.0)

    y = torch.empty(1, device="cuda")
    device.compute.enqueue(slow, "slow")
    copies.wait(device.compute.record())
    copies.enqueue(lambda: y.copy_(x), "copy")
    await ticket(device, "copies")
    assert y.item() == 5
    device.close()


@pytest.mark.gpu
async def test_a_copy_that_takes_long_holds_up_no_step() -> None:
    device = NvidiaDevice()
    device.stream("copies").enqueue(busy_kernel, "long copy")
    slow = ticket(device, "copies")
    device.compute.enqueue(lambda: None, "step")
    await ticket(device)
    assert not slow.settled
    await slow
    device.close()


@pytest.mark.gpu
async def test_marks_watched_late_are_told_in_their_order() -> None:
    device = NvidiaDevice()
    loop, told = asyncio.get_running_loop(), list[int]()
    device.compute.enqueue(busy_kernel, "long")
    marks = [device.compute.record() for _ in range(3)]
    tickets = {}
    for number in (2, 0, 1):
        tickets[number] = device.watch(marks[number], loop)
        tickets[number].on_settled(lambda error, number=number: told.append(number))
    await asyncio.gather(*(_awaited(each) for each in tickets.values()))
    assert told == [0, 1, 2]
    device.close()


async def _awaited(each: Ticket) -> None:
    await each


async def use_some_memory(device: NvidiaDevice) -> None:
    with device.placing():
        x = torch.zeros(1 << 28, device="cuda")
    graph = device.capture(lambda: x.add_(1), "one")
    device.compute.enqueue(graph.replay, "one")
    await ticket(device)


@pytest.mark.gpu
async def test_closing_gives_back_threads_and_memory() -> None:
    first = NvidiaDevice()
    first.close()
    threads, held = threading.active_count(), []
    for _ in range(3):
        device = NvidiaDevice()
        await use_some_memory(device)
        gc.collect()
        device.close()
        free, total = torch.cuda.mem_get_info()
        held.append((total - free, torch.cuda.memory_allocated(), torch.cuda.memory_reserved()))
    assert threading.active_count() == threads
    assert held[2][0] - held[0][0] < 64 << 20, held
    assert held[2][2] - held[2][1] < 64 << 20, held


@pytest.mark.gpu
async def test_times_are_the_cards_and_no_piece_waits_to_be_timed() -> None:
    device, told = NvidiaDevice(), list[tuple[str, int, int]]()
    device.time_work(lambda stream, label, begin, end: told.append((label, begin, end)))
    before = time.perf_counter_ns()
    for number in range(3):
        device.compute.enqueue(lambda: torch.cuda._sleep(20_000_000), f"forward:{number}")
    await ticket(device)
    after = time.perf_counter_ns()
    device.close()
    durations = [end - begin for _, begin, end in told]
    assert [label for label, _, _ in told] == [f"forward:{number}" for number in range(3)]
    assert min(durations) > 0.8 * max(durations) > 1e6
    assert before <= told[0][1] <= told[-1][2] <= after
    gaps = [following[1] - piece[2] for piece, following in itertools.pairwise(told)]
    assert max(gaps) < 200_000


def test_marks_need_not_wait_for_a_busy_loop_while_a_device_is_open() -> None:
    """The interpreter's switch interval is short from the first device that opens to the last that closes."""
    usual, switching = sys.getswitchinterval(), _SwitchInterval()
    switching.shorten()
    switching.shorten()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    switching.restore()
    assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
    switching.restore()
    assert sys.getswitchinterval() == pytest.approx(usual)
