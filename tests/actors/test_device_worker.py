"""The device worker launches in order, finds a hang, and never raises into a callback of the device."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from stepahead.actors.device_worker import DeviceWorker
from stepahead.actors.messages import DeviceFailed, SamplingPrepared, StepPlanned
from stepahead.devices.clock import run_virtual
from stepahead.devices.device import DeviceError, Event, Ticket
from stepahead.engine.errors import DeviceStalledError
from stepahead.engine.model.runner import BatchLayout, Runner, SamplePlan, SamplingRows, StepPlan, StepResult

EMPTY = np.empty(0, dtype=np.int32)
LAYOUT = BatchLayout(
    slots=EMPTY,
    sequence_keys=np.empty(0, dtype=np.int64),
    admissions=np.empty(0, dtype=np.int64),
    query_lengths=EMPTY,
    row_starts=EMPTY,
    reach=EMPTY,
    samples=np.empty(0, dtype=np.bool_),
    decode_count=0,
    rows=0,
)


class Recorder(Runner):
    """Notes what is launched; tickets are settled by the test."""

    def __init__(self) -> None:
        self.launched: list[str] = []
        self.tickets: list[Ticket] = []
        self.result: StepResult | Exception = LookupError("no result was set")

    def launch_forward(self, plan: StepPlan) -> None:
        self.launched.append(f"F{plan.step}")

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        self.launched.append(f"S{plan.step}")
        self.tickets.append(Ticket())
        return self.tickets[-1]

    def collect(self, ticket: Ticket) -> StepResult:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result

    def close(self) -> None:
        """Nothing is held."""


class Inbox:
    """Stands for the sampler's mailbox."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def post(self, message: Any) -> None:
        self.messages.append(message)

    async def send(self, message: Any) -> None:
        self.messages.append(message)


def planned(step: int) -> StepPlanned:
    plan = StepPlan(
        step=step,
        layout=LAYOUT,
        first_positions=EMPTY,
        chunk_tokens=EMPTY,
        chunk_history=EMPTY,
        chunk_ends=EMPTY,
        table_updates=EMPTY,
        state_copies=EMPTY,
    )
    return StepPlanned(plan=plan, admitted=())


def prepared(step: int) -> SamplingPrepared:
    rows = SamplingRows(**dict.fromkeys(SamplingRows.__struct_fields__, EMPTY))
    return SamplingPrepared(plan=SamplePlan(step=step, updates=rows, logprobs=-1, all_greedy=True))


def result(step: int) -> StepResult:
    finite = np.empty(0, dtype=np.bool_)
    return StepResult(step=step, tokens=EMPTY, emitted=EMPTY, drafted=EMPTY, positions=EMPTY, finite=finite)


def worker_of(runner: Recorder, stall_seconds: float = 5.0) -> tuple[DeviceWorker, Inbox]:
    worker, inbox = DeviceWorker(runner, stall_seconds=stall_seconds, capacity=16), Inbox()
    worker.connect(inbox)
    return worker, inbox


async def test_an_early_plan_waits_for_its_turn() -> None:
    runner = Recorder()
    worker, inbox = worker_of(runner)
    await worker.handle(planned(0))
    await worker.handle(planned(1))
    assert runner.launched == ["F0"]
    await worker.handle(prepared(0))
    assert runner.launched == ["F0", "S0", "F1"]
    runner.result = result(0)
    runner.tickets[0].settle()
    assert [message.result.step for message in inbox.messages] == [0]
    await worker.handle(prepared(1))
    assert runner.launched == ["F0", "S0", "F1", "S1"]
    await worker.handle(planned(2))
    assert runner.launched[-1] == "F2"


class Point(Event):
    """An event that the test lets happen before the loop hears of it."""

    happened = False

    @property
    def reached(self) -> bool:
        return self.happened

    @property
    def error(self) -> BaseException | None:
        return None


class Overtaken(Recorder):
    """Its device is done before it can say so."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[Point] = []

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        self.launched.append(f"S{plan.step}")
        self.points.append(Point())
        self.tickets.append(Ticket(self.points[-1]))
        return self.tickets[-1]


async def test_looking_finds_the_end_of_a_step_before_the_device_tells() -> None:
    runner = Overtaken()
    runner.result = result(0)
    worker, inbox = worker_of(runner)
    assert not worker.look()
    await worker.handle(planned(0))
    await worker.handle(prepared(0))
    assert not worker.look()
    assert inbox.messages == []
    runner.points[0].happened = True
    assert worker.look()
    assert not worker.look()
    runner.tickets[0].settle()  # what the device says later, nobody hears
    assert [message.result.step for message in inbox.messages] == [0]


@pytest.mark.parametrize("late", [False, True])
async def test_a_forward_launched_behind_a_step_that_had_ended_is_a_wait(late: bool) -> None:
    runner = Overtaken()
    runner.result = result(0)
    worker, inbox = worker_of(runner)
    await worker.handle(planned(0))
    await worker.handle(prepared(0))
    runner.points[0].happened = late
    await worker.handle(planned(1))
    assert runner.launched == ["F0", "S0", "F1"]
    runner.tickets[0].settle()
    assert inbox.messages[0].device_waits == late
    await worker.handle(prepared(1))
    await worker.handle(planned(2))  # in time: the wait was the other step's
    runner.tickets[1].settle()
    assert not inbox.messages[1].device_waits


async def test_nothing_behind_a_step_is_a_wait() -> None:
    runner = Recorder()
    runner.result = result(0)
    worker, inbox = worker_of(runner)
    await worker.handle(planned(0))
    await worker.handle(prepared(0))
    runner.tickets[0].settle()
    assert inbox.messages[0].device_waits


async def test_sampling_out_of_order_is_a_bug_that_is_named() -> None:
    worker, _ = worker_of(Recorder())
    await worker.handle(planned(0))
    with pytest.raises(AssertionError, match="sampling of step 1 after the forward of step 0"):
        await worker.handle(prepared(1))
    await worker.handle(prepared(0))
    await worker.handle(planned(1))
    with pytest.raises(AssertionError, match="with step 0 outstanding"):
        await worker.handle(prepared(1))


@pytest.mark.parametrize("broken", ["ticket", "collect"])
async def test_an_error_of_the_device_becomes_a_message_to_itself(broken: str) -> None:
    runner = Recorder()
    worker, inbox = worker_of(runner)
    await worker.handle(planned(0))
    await worker.handle(prepared(0))
    runner.tickets[0].settle(DeviceError("mine") if broken == "ticket" else None)
    message = worker.mailbox.receive_nowait()
    assert isinstance(message, DeviceFailed)
    with pytest.raises(DeviceError if broken == "ticket" else LookupError):
        await worker.handle(message)
    assert inbox.messages == []


async def test_a_late_device_finds_a_closed_mailbox_quietly() -> None:
    runner = Recorder()
    worker, _ = worker_of(runner)
    await worker.handle(planned(0))
    await worker.handle(prepared(0))
    worker.mailbox.close()
    runner.tickets[0].settle(DeviceError("closed"))


def test_only_a_step_that_takes_too_long_is_a_stall() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        runner = Recorder()
        runner.result = result(0)
        worker, _ = worker_of(runner, stall_seconds=5.0)
        assert worker.seconds_since_step is None
        for step in range(4):  # 3 s each: none is a stall, the timer fires in between
            await worker.handle(planned(step))
            await worker.handle(prepared(step))
            await asyncio.sleep(3)
            runner.tickets[step].settle()
        await asyncio.sleep(1)
        assert worker.seconds_since_step == 1
        await asyncio.sleep(60)  # idle is no stall either
        assert worker.mailbox.receive_nowait() is None
        begun = loop.time()
        await worker.handle(planned(4))
        await worker.handle(prepared(4))
        message = await worker.mailbox.receive()
        assert loop.time() == begun + 5
        assert isinstance(message, DeviceFailed)
        assert isinstance(message.error, DeviceStalledError)
        assert (message.error.step, message.error.seconds) == (4, 5.0)

    run_virtual(main())
