"""Drives the pure core without actors: random workloads, the fake device, and a check after every event.

The driver plays all actors synchronously but keeps their freedom of order: a step's result is known to the
host only when the driver commits it, and between any two events requests arrive, are cancelled, expire, the
engine pauses, or the prefix cache is reset.
"""

from __future__ import annotations

from collections import deque
from random import Random

import msgspec
import numpy as np

from stepahead.engine.cache.core import CacheCore
from stepahead.engine.model.runner import ModelFacts, RunnerShape, StepPlan, StepResult
from stepahead.engine.sampling.commit import RUNNING, resolve
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.scheduling.limits import SchedulingLimits
from stepahead.engine.scheduling.planner import Planned, SchedulingCore
from stepahead.engine.types import Request, ResolvedParams

from .core_device import FakeDevice, Model


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one driven core."""

    slots: int = 4
    blocks: int = 24
    block_tokens: int = 4
    max_context: int = 48
    max_rows: int = 24
    prefill_chunk: int = 8
    draft_tokens: int = 0
    snapshots: int = 3
    hit_margin: int = 1
    max_bypass: int = 2
    overlap: bool = True
    prefix_cache: bool = True
    vocab: int = 17
    window: int = 5

    @property
    def width(self) -> int:
        return self.draft_tokens + 1

    def limits(self) -> SchedulingLimits:
        return SchedulingLimits(
            sequence_slots=self.slots,
            block_tokens=self.block_tokens,
            table_columns=self.columns,
            max_positions=self.max_context + 2 * self.width,
            max_context=self.max_context,
            max_rows=self.max_rows,
            prefill_chunk=self.prefill_chunk,
            draft_tokens=self.draft_tokens,
            backtracking=self.backtracking,
            hit_margin=self.hit_margin,
            max_bypass=self.max_bypass,
            overlap=self.overlap,
            prefix_cache=self.prefix_cache,
        )

    @property
    def backtracking(self) -> int:
        return self.width if self.draft_tokens else 0

    @property
    def columns(self) -> int:
        return -(-(self.max_context + 2 * self.width) // self.block_tokens)

    def shape(self) -> RunnerShape:
        return RunnerShape(
            sequence_slots=self.slots,
            snapshot_slots=self.snapshots,
            blocks=self.blocks,
            table_columns=self.columns,
            max_rows=self.max_rows,
            max_positions=self.max_context + 2 * self.width,
            draft_tokens=self.draft_tokens,
            max_stop_ids=3,
            max_logprobs=0,
        )

    def facts(self) -> ModelFacts:
        return ModelFacts(
            vocab_size=self.vocab,
            eos_token_ids=(0,),
            max_positions=self.max_context,
            block_tokens=self.block_tokens,
            block_bytes=1,
            state_bytes=1,
            draft_tokens=self.draft_tokens,
            backtracking=self.backtracking,
            hit_margin=self.hit_margin,
        )


def make_request(
    key: int,
    prompt: list[int],
    *,
    max_output: int = 8,
    seed: int = 0,
    end_ids: tuple[int, ...] = (),
    priority: int = 0,
    choice: int = 0,
    leader: int | None = None,
    group: int | None = None,
    deadline: float | None = None,
    salt: bytes = b"",
    arrival: float = 0.0,
    temperature: float = 0.0,
    logprobs: int = -1,
) -> Request:
    """A validated request with the fields a test cares about."""
    return Request(
        key=key,
        group=key if group is None else group,
        choice=choice,
        leader=key if leader is None else leader,
        label=None,
        prompt=np.array(prompt, dtype=np.int32).tobytes(),
        params=ResolvedParams(
            temperature=temperature,
            top_k=0,
            top_p=1.0,
            seed=seed,
            max_output=max_output,
            min_output=0,
            end_ids=end_ids,
            stop=(),
            include_stop=False,
            logprobs=logprobs,
            detokenize=True,
        ),
        priority=priority,
        arrival=arrival,
        deadline=deadline,
        salt=salt,
    )


class Driver:
    """One core, one cache, one sampling table, one fake device."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.core = SchedulingCore(setup.limits())
        self.cache = CacheCore(setup.shape(), setup.facts(), setup.prefix_cache)
        self.table = SamplingTable(setup.shape())
        self.model = Model(vocab=setup.vocab, window=setup.window)
        self.device = FakeDevice(self.model, setup.shape(), setup.block_tokens, setup.backtracking)
        self.flight: deque[tuple[Planned, StepResult]] = deque()
        self.now = 0.0
        self.outputs: dict[int, list[int]] = {}
        self.ended: dict[int, str] = {}
        self.requests: dict[int, Request] = {}
        self.retired: list[int] = []
        self.hits: dict[int, list[int]] = {}
        self.plans: list[StepPlan] = []
        self.demands = self.accepted = self.rejected = 0

    # Events.

    def submit(self, *requests: Request) -> None:
        for request in requests:
            self.requests[request.key] = request
            self.outputs[request.key] = []
            self.device.solutions[request.key] = self.model.solo(request)
            self.core.submit(request, self.now)
        self.check()

    def cancel(self, key: int) -> bool:
        alive = self.core.cancel(key)
        assert alive == (key not in self.ended)
        if alive:
            self.ended[key] = "cancelled"
        self.check()
        return alive

    def expire(self) -> None:
        for key in self.core.expire(self.now):
            self.ended[key] = "deadline"
        self.check()

    def reset(self) -> None:
        self.cache.reset()
        self.check()

    def plan(self) -> Planned | None:
        """One planning, if the mode allows one now."""
        if self.core.uncommitted > self.setup.limits().depth:
            return None
        planning = self.core.plan(self.now)
        answer = None
        try:
            while True:
                demand = planning.send(answer)
                self.demands += 1
                answer = self.cache.reserve(demand)
        except StopIteration as stop:
            planned: Planned | None = stop.value
        if planned is not None:
            self.cache.publish(planned.publications)
            self.plans.append(planned.plan)
            for occupant, hit in zip(planned.admitted, planned.cached_tokens, strict=True):
                self.hits.setdefault(occupant.request.key, []).append(hit)
                assert occupant.output == len(self.outputs[occupant.request.key])
            result = self.device.run(planned.plan, planned.admitted)
            if not self.flight:
                self.table.prepare(planned.plan.layout, planned.admitted, planned.plan.step)
            self.flight.append((planned, result))
        self.check()
        return planned

    def commit(self) -> None:
        """Commits the oldest step in flight, as sampler, scheduler, cache and output would."""
        planned, result = self.flight.popleft()
        layout = planned.plan.layout
        commit = resolve(layout, result, self.table)
        if self.flight:
            after = self.flight[0][0]
            self.table.prepare(after.plan.layout, after.admitted, after.plan.step)
        before = self.core.ledger.cached[layout.slots].copy()
        here = self.core.ledger.admissions[layout.slots] == layout.admissions
        assert (before[here] == result.positions[here]).all(), "device and ledger disagree on a position"
        self.accepted += int(commit.accepted.sum())
        self.rejected += int((commit.drafted - commit.accepted).sum())
        news = self.core.commit(commit, self.now)
        self.cache.publish(news.publications)
        for row, key in enumerate(layout.sequence_keys.tolist()):
            assert key not in self.retired, "a retired sequence is mentioned by a commit"
            if key not in self.ended:
                self.outputs[key] += commit.tokens[row, : commit.counts[row]].tolist()
                if commit.finish[row] != RUNNING:
                    self.ended[key] = "finished"
                    assert key in news.finished
        assert all(self.ended[key] == "finished" for key in news.finished)
        self.retired.extend(news.retired)
        self.check()

    def step(self) -> bool:
        """Plans as far ahead as the mode allows, then commits once. False: there was nothing to do."""
        while self.core.uncommitted <= self.setup.limits().depth and self.plan() is not None:
            pass
        if not self.flight:
            return False
        self.commit()
        return True

    def run(self, limit: int = 10_000) -> None:
        """Until idle; fails instead of hanging."""
        for _ in range(limit):
            if not self.step():
                assert not self.core.has_work, "nothing can be planned although sequences live"
                return
        raise AssertionError("the workload does not end")

    # Verdicts.

    def check(self) -> None:
        """All invariants, of each part and between them."""
        self.core.check()
        self.cache.check()
        ledger = self.core.ledger
        expected = np.zeros(self.setup.blocks, dtype=np.int32)
        for slot in np.flatnonzero(ledger.block_count).tolist():
            np.add.at(expected, ledger.table[slot, : ledger.block_count[slot]], 1)
        assert expected[0] == 0, "a table holds the scratch block"
        held = self.cache.references() - expected
        assert (held == 0).all(), f"blocks {np.flatnonzero(held).tolist()} are not what the tables hold"
        statistics = self.cache.statistics()
        open_copies = len(self.core.held_snapshots())
        assert statistics.snapshots_free + statistics.snapshots_kept + open_copies == statistics.snapshots

    def check_text(self) -> None:
        """Every stream is its solo text, whole where it finished and a prefix where it was ended."""
        for key, output in self.outputs.items():
            solution = self.device.solutions[key]
            assert output == solution[: len(output)], f"sequence {key} differs from its solo run"
            if self.ended.get(key) == "finished":
                assert output == solution, f"sequence {key} is incomplete"

    def check_idle(self) -> None:
        """Everything is back where it was."""
        counts, statistics = self.core.counts(), self.cache.statistics()
        assert (counts.running, counts.waiting, self.core.uncommitted) == (0, 0, 0)
        assert statistics.free == statistics.blocks
        assert not self.core.held_snapshots()
        assert statistics.publishers == 0
        assert set(self.ended) == set(self.requests)


def random_workload(seed: int) -> Driver:
    """One random setup and workload, driven to its end."""
    random = Random(seed)
    draft_tokens = random.choice([0, 0, 1, 2, 3, 5])
    block_tokens = random.choice([2, 4, 4, 8])
    width = draft_tokens + 1
    slots = random.choice([1, 2, 4, 7])
    max_context = random.choice([24, 40, 64])
    setup = Setup(
        slots=slots,
        block_tokens=block_tokens,
        blocks=2 + -(-(max_context + 2 * width) // block_tokens) + random.choice([0, 0, 1, 10, 60]),
        max_context=max_context,
        max_rows=slots * width + random.choice([0, 3, 16, 64]),
        prefill_chunk=random.choice([3, 8, 16, 64]),
        draft_tokens=draft_tokens,
        snapshots=random.choice([0, 2, 6, 20]),
        hit_margin=random.choice([1, 1, 3]),
        max_bypass=random.choice([0, 2, 8]),
        overlap=random.random() < 0.7,
        prefix_cache=random.random() < 0.85,
    )
    driver = Driver(setup)
    shared = [[random.randrange(1, setup.vocab) for _ in range(max_context)] for _ in range(2)]
    for _ in range(random.choice([20, 60, 150])):
        _random_event(driver, random, shared)
    driver.core.paused = False
    driver.run()
    driver.plan()
    driver.check_text()
    driver.check_idle()
    return driver


def _random_event(driver: Driver, random: Random, shared: list[list[int]]) -> None:
    driver.now += random.random()
    kind = random.random()
    if kind < 0.25:
        driver.submit(*_random_requests(driver, random, shared))
    elif kind < 0.30 and driver.requests:
        driver.cancel(random.choice(list(driver.requests)))
    elif kind < 0.33:
        driver.expire()
    elif kind < 0.34:
        driver.reset()
    elif kind < 0.36:
        driver.core.paused = not driver.core.paused
    elif kind < 0.37:
        for key in driver.core.cancel_all():
            driver.ended[key] = "cancelled"
        driver.check()
    elif kind < 0.70:
        driver.plan()
    elif driver.flight:
        driver.commit()


def _random_prompt(driver: Driver, random: Random, shared: list[list[int]]) -> list[int]:
    """Fresh, with a shared beginning, or the continuation of an earlier conversation."""
    longest = driver.setup.max_context - 1
    kind, prefix = random.random(), []
    if kind < 0.4 and driver.requests:
        earlier = driver.requests[random.choice(list(driver.requests))]
        spoken = [*np.frombuffer(earlier.prompt, dtype=np.int32).tolist()]
        prefix = spoken + driver.device.solutions[earlier.key]
        prefix = prefix[: random.choice([len(spoken), len(prefix), len(prefix)])]
    elif kind < 0.8:
        prefix = random.choice(shared)[: random.randint(0, longest)]
    tail = random.choice([0, 1, 2, 5, longest // 2])
    fresh = [random.randrange(1, driver.setup.vocab) for _ in range(tail)]
    return (prefix + fresh or [1])[:longest]


def _random_requests(driver: Driver, random: Random, shared: list[list[int]]) -> list[Request]:
    setup = driver.setup
    base = len(driver.requests) + 1
    prompt = _random_prompt(driver, random, shared)
    length = len(prompt)
    deadline = driver.now + random.uniform(0.0, 20.0) if random.random() < 0.1 else None
    count, seed, priority = random.choice([1, 1, 1, 3]), random.randrange(1000), random.choice([0, 0, 0, 1])
    max_output = random.randint(0, setup.max_context - length)
    end_ids = random.choice([(), (0,), (0, 5, 6)])
    salt = random.choice([b"", b"", b"", b"tenant"])
    return [
        make_request(
            base + choice,
            prompt,
            max_output=max_output,
            seed=seed,
            end_ids=end_ids,
            priority=priority,
            choice=choice,
            leader=base,
            group=base,
            deadline=deadline,
            salt=salt,
        )
        for choice in range(count)
    ]
