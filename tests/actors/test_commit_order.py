"""Streams hear of a commit behind the plan that it allows, and before a sequence in it is admitted again."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import Any

import msgspec
import pytest

from stepahead import Engine, SamplingParams
from stepahead.actors.actor import Address
from stepahead.actors.messages import Message, SequencesAdmitted, StepCommitted, StepPlanned
from stepahead.engine.scheduling.delivery import MOST
from tests.actors.hashed_engine import DRAFTING, exact, open_hashed, prompt_of


class Log:
    """What the scheduler says to the device worker and to the output actor, in one order."""

    def __init__(self, engine: Engine) -> None:
        self.messages: list[Message] = []
        scheduler = engine._host.wiring.scheduler
        scheduler._to_device = Noting(scheduler._to_device, self)
        scheduler._to_output = Noting(scheduler._to_output, self)


class Late:
    """The scheduler's address, as if the device had waited behind every step, none of which took long."""

    def __init__(self, address: Address[StepCommitted]) -> None:
        self._address = address

    def post(self, message: StepCommitted) -> None:
        self._address.post(msgspec.structs.replace(message, device_waits=True, seconds=0.0))

    async def send(self, message: StepCommitted) -> None:
        self.post(message)


class Noting:
    """A mailbox's address that also writes the log."""

    def __init__(self, address: Address[Any], log: Log) -> None:
        self._address, self._log = address, log

    def post(self, message: Any) -> None:
        self._log.messages.append(message)
        self._address.post(message)

    async def send(self, message: Any) -> None:
        self._log.messages.append(message)
        await self._address.send(message)


async def test_the_next_plan_goes_first() -> None:
    async with open_hashed() as engine:
        log = Log(engine)
        await engine.generate(prompt_of(9), SamplingParams(temperature=0, max_tokens=30, ignore_eos=True))
        steps = engine.stats().steps
        commits = [m.commit.step for m in log.messages if isinstance(m, StepCommitted)]
        assert commits == list(range(steps))
        planned = {m.plan.step: at for at, m in enumerate(log.messages) if isinstance(m, StepPlanned)}
        told = {m.commit.step: at for at, m in enumerate(log.messages) if isinstance(m, StepCommitted)}
        assert all(planned[step + 2] < told[step] for step in range(steps - 2))


@pytest.mark.parametrize("overlap", [True, False])
async def test_streams_give_way_while_the_device_waits(overlap: bool) -> None:
    """First tokens and ends are told at once; with overlap, others a few steps at a time."""
    async with open_hashed(overlap=overlap) as engine:
        log, sampler = Log(engine), engine._host.wiring.sampler
        sampler._to_scheduler = Late(sampler._to_scheduler)
        params = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        prompts = [prompt_of(9, seed) for seed in range(2)]
        done = await asyncio.gather(*(engine.generate(prompt, params) for prompt in prompts))
        for prompt, completion in zip(prompts, done, strict=True):
            exact(completion, prompt, params)
        runs = groupby(log.messages, lambda message: isinstance(message, StepCommitted))
        at_once = [len(list(run)) for of_commits, run in runs if of_commits]
        assert max(at_once[:-1]) == (MOST if overlap else 1)
        assert at_once[0] == 1
        told = [message.commit for message in log.messages if isinstance(message, StepCommitted)]
        assert [commit.step for commit in told] == list(range(engine.stats().steps))
        assert told[-1].any_finish


async def test_a_reader_that_had_no_turn_is_not_slow() -> None:
    async with open_hashed(slow_reader="abort", unread_tokens=2) as engine:
        sampler = engine._host.wiring.sampler
        sampler._to_scheduler = Late(sampler._to_scheduler)
        params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
        exact(await engine.generate(prompt_of(9), params), prompt_of(9), params)
        assert engine.stats().coalesced_deltas > 10


async def test_an_admission_after_a_preemption_goes_last() -> None:
    """The output actor drops the token that a returning sequence draws again; it must not be an older one."""
    knobs: dict[str, Any] = {"kv_blocks": 36, "snapshot_slots": 3, "acceptance": "rejection", "verify": "all"}
    async with open_hashed(DRAFTING, **knobs) as engine:
        log = Log(engine)
        lengths = {5: 90, 8: 83, 11: 76}  # one is preempted, and room again, while its last step is in flight
        params = [SamplingParams(seed=1, max_tokens=most, ignore_eos=True) for most in lengths.values()]
        prompts = [prompt_of(length, number) for number, length in enumerate(lengths)]
        await asyncio.gather(*map(engine.generate, prompts, params))
        first_step: dict[int, int] = {}  # of a sequence since it was admitted last
        newest = -1
        for message in log.messages:
            if isinstance(message, StepPlanned):
                newest = message.plan.step
            elif isinstance(message, SequencesAdmitted):
                first_step |= dict.fromkeys(message.sequence_keys, newest)
            elif isinstance(message, StepCommitted):
                for key in message.commit.layout.sequence_keys.tolist():
                    assert message.commit.step >= first_step[key]
        assert engine.stats().preemptions > 0
