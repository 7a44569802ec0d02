"""The scheduler asks its group before every step; a rank alone steps when it wants to."""

from __future__ import annotations

import asyncio

from stepahead import SamplingParams
from stepahead.actors.group import Group, SingleRank
from stepahead.devices.clock import run_virtual
from tests.actors.hashed_engine import exact, open_hashed, prompt_of

GREEDY = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)


class Hesitant(Group):
    """Agrees after a message's time."""

    def __init__(self) -> None:
        self.asked: list[bool] = []

    async def agree(self, wants: bool) -> bool:
        self.asked.append(wants)
        await asyncio.sleep(0.01)
        return wants


async def test_a_rank_alone_does_what_it_wants() -> None:
    assert await SingleRank().agree(True)
    assert not await SingleRank().agree(False)


def test_every_step_is_agreed_on_and_waiting_for_that_changes_no_text() -> None:
    async def main() -> None:
        group = Hesitant()
        async with open_hashed() as engine:
            engine._host.wiring.scheduler._group = group
            done = await asyncio.gather(*(engine.generate(prompt_of(20, s), GREEDY) for s in range(3)))
            for seed, completion in enumerate(done):
                exact(completion, prompt_of(20, seed), GREEDY)
            assert sum(group.asked) >= engine.stats().steps

    run_virtual(main())
