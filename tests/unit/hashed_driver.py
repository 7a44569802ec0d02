"""Runs requests on a hashed runner by plans made here: random chunks, batches and verify lengths.

It keeps as little as a scheduler must (who has how many tokens cached, which blocks) and spoils on demand
what a scheduler could get wrong, so that tests can see the text change.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from stepahead.devices.device import Device, Ticket
from stepahead.engine.model.hashed import HashedModel, HashedRunner
from stepahead.engine.model.runner import (
    NO_TOKEN,
    BatchLayout,
    Int32s,
    Runner,
    RunnerShape,
    SamplePlan,
    SamplingRows,
    StepPlan,
    StepResult,
)
from stepahead.engine.sampling.edits import edit_rows
from stepahead.engine.types import Occupant, Request, ResolvedParams

Spoil = Callable[[StepPlan], StepPlan]


def int32(values: Any, width: int | None = None) -> Int32s:
    array = np.array(values, dtype=np.int32)
    return array if width is None else array.reshape(-1, width)


def request(key: int, prompt: list[int], **params: Any) -> Request:
    """A validated request; parameters default to greedy and 12 tokens."""
    defaults: dict[str, Any] = {
        "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 7, "max_output": 12, "min_output": 0,
        "end_ids": (), "stop": (), "include_stop": False, "logprobs": -1, "detokenize": False,
    }  # fmt: skip
    return Request(
        key=key,
        group=key,
        choice=0,
        leader=key,
        label=None,
        prompt=int32(prompt).tobytes(),
        params=ResolvedParams(**{**defaults, **params}),
        priority=0,
        arrival=0.0,
        deadline=None,
        salt=b"",
    )


def sampling_rows(requests: list[Request], slots: list[int], width: int = 4) -> SamplingRows:
    params = [r.params for r in requests]
    return SamplingRows(
        slots=int32(slots),
        temperature=np.array([p.temperature for p in params], dtype=np.float32),
        top_k=int32([p.top_k for p in params]),
        top_p=np.array([p.top_p for p in params], dtype=np.float32),
        min_p=np.array([p.min_p for p in params], dtype=np.float32),
        seed=np.array([p.seed for p in params], dtype=np.uint64),
        choice=int32([r.choice for r in requests]),
        origin=int32([len(r.prompt) // 4 for r in requests]),
        min_output=int32([p.min_output for p in params]),
        end_ids=int32([[*p.end_ids, *[NO_TOKEN] * (width - len(p.end_ids))] for p in params], width),
        logprobs=int32([p.logprobs for p in params]),
        processed=np.array([p.logprobs_processed for p in params], dtype=np.bool_),
        forced=int32([NO_TOKEN] * len(params)),
        most_drafts=int32([p.draft_tokens for p in params]),
    )


def shape_for(model: HashedModel, **sizes: int) -> RunnerShape:
    columns = -(-256 // model.block_tokens)
    defaults = {
        "sequence_slots": 6, "snapshot_slots": 4, "blocks": 1 + 6 * columns, "table_columns": columns,
        "max_rows": 512, "max_positions": 256, "draft_tokens": model.draft_tokens, "max_stop_ids": 4,
        "max_logprobs": 5,
    }  # fmt: skip
    return RunnerShape(**{**defaults, **sizes})


@dataclass
class Running:
    """One sequence: `sent` tokens were planned as prompt rows, `least` is what it has surely cached."""

    request: Request
    slot: int
    prompt: list[int]
    sent: int = 0
    ahead: int = 0  # most positions in flight
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    failed: bool = False

    @property
    def prefilling(self) -> bool:
        return self.sent < len(self.prompt)

    @property
    def cached(self) -> int:
        return len(self.prompt) + max(len(self.output) - 1, 0)


class HandDriver:
    """`overlap`: plan and launch a forward before the step before it is looked at."""

    def __init__(
        self,
        model: HashedModel,
        device: Device,
        requests: list[Request],
        *,
        seed: int = 0,
        overlap: bool = True,
    ) -> None:
        self.model, self.random, self.overlap = model, random.Random(seed), overlap
        self.shape = shape_for(model)
        self.runner: Runner = HashedRunner(model, self.shape, device)
        slots = self.random.sample(range(1, self.shape.sequence_slots + 1), len(requests))
        blocks = self.random.sample(range(1, self.shape.blocks), len(slots) * self.shape.table_columns)
        self.running = [
            Running(r, slot, np.frombuffer(r.prompt, dtype=np.int32).tolist())
            for r, slot in zip(requests, slots, strict=True)
        ]
        width = self.shape.table_columns
        self.tables = {slot: blocks[i * width : (i + 1) * width] for i, slot in enumerate(slots)}
        self.spoil: dict[int, Spoil] = {}  # by step
        self.steps = 0
        self.results: list[StepResult] = []

    async def run(self) -> dict[int, list[int]]:
        """Output by request key, each at least `max_output` long."""
        previous: tuple[StepPlan, Ticket] | None = None
        while previous is not None or any(map(self._wants, self.running)):
            plan = self._plan()
            if plan is not None:
                self.runner.launch_forward(plan)
            if previous is not None:
                await self._commit(*previous)
                previous = None
            if plan is not None:
                previous = (plan, self.runner.launch_sample(self._sample_plan(plan)))
            if previous is not None and not self.overlap:
                await self._commit(*previous)
                previous = None
        return {r.request.key: r.output[: r.request.params.max_output] for r in self.running}

    def _wants(self, sequence: Running) -> bool:
        if sequence.failed:
            return False
        return sequence.prefilling or len(sequence.output) < sequence.request.params.max_output

    def _plan(self) -> StepPlan | None:
        chosen = [s for s in self.running if self._wants(s) and self.random.random() < 0.8]
        decode = [s for s in chosen if not s.prefilling]
        prompts = [s for s in chosen if s.prefilling]
        self.random.shuffle(decode)
        if not chosen:
            return None
        lengths = [self.random.randint(1, self.model.draft_tokens + 1) for _ in decode]
        chunks = [self.random.randint(1, min(20, len(s.prompt) - s.sent)) for s in prompts]
        updates = [(s.slot, c, b) for s in prompts if s.sent == 0 for c, b in enumerate(self.tables[s.slot])]
        first = [s.cached + s.ahead for s in decode] + [s.sent for s in prompts]
        plan = StepPlan(
            step=self.steps,
            layout=self._layout(decode, prompts, lengths + chunks),
            first_positions=int32(first),
            chunk_tokens=int32(
                [t for s, n in zip(prompts, chunks, strict=True) for t in s.prompt[s.sent : s.sent + n]]
            ),
            chunk_history=int32([([NO_TOKEN] * 3 + s.prompt[: s.sent])[-3:] for s in prompts], 3),
            chunk_ends=int32([len(s.prompt) for s in prompts]),
            table_updates=int32(updates, 3),
            state_copies=int32([], 2),
        )
        for sequence, length in zip(decode, lengths, strict=True):
            sequence.ahead += length
        for sequence, count in zip(prompts, chunks, strict=True):
            sequence.sent += count
        self.steps += 1
        return self.spoil.get(plan.step, lambda plan: plan)(plan)

    def _layout(self, decode: list[Running], prompts: list[Running], lengths: list[int]) -> BatchLayout:
        sequences = [*decode, *prompts]
        last = [s.sent + n == len(s.prompt) for s, n in zip(prompts, lengths[len(decode) :], strict=True)]
        return BatchLayout(
            slots=int32([s.slot for s in sequences]),
            sequence_keys=np.array([s.request.key for s in sequences]),
            admissions=np.array([s.slot for s in sequences]),
            query_lengths=int32(lengths),
            row_starts=int32(np.cumsum([0, *lengths[:-1]])),
            reach=int32(lengths),
            samples=np.array([True] * len(decode) + last),
            decode_count=len(decode),
            rows=sum(lengths),
        )

    def _sample_plan(self, plan: StepPlan) -> SamplePlan:
        decode = plan.layout.decode_count
        slots = plan.layout.slots[decode:][plan.first_positions[decode:] == 0].tolist()
        requests = [s.request for slot in slots for s in self.running if s.slot == slot]
        return SamplePlan(
            step=plan.step,
            updates=sampling_rows(requests, slots),
            logprobs=max(s.request.params.logprobs for s in self.running),
            all_greedy=False,
            edits=edit_rows(
                [Occupant(slot=s, request=r, output=0) for s, r in zip(slots, requests, strict=True)]
            ),
        )

    async def _commit(self, plan: StepPlan, ticket: Ticket) -> None:
        await ticket
        result = self.runner.collect(ticket)
        self.results.append(result)
        by_slot = {s.slot: s for s in self.running}
        for i, slot in enumerate(plan.layout.slots.tolist()):
            sequence = by_slot[slot]
            if sequence.failed:
                continue
            if i < plan.layout.decode_count:
                sequence.ahead -= int(plan.layout.reach[i])
                assert int(result.positions[i]) == sequence.cached
            sequence.failed = not result.finite[i]
            if sequence.failed:
                continue
            count = int(result.emitted[i])
            sequence.output += result.tokens[i, :count].tolist()
            if result.logprobs is not None:
                sequence.logprobs += result.logprobs[i, :count].tolist()


def replaced(plan: StepPlan, **changes: Any) -> StepPlan:
    return msgspec.structs.replace(plan, **changes)


async def outputs(
    model: HashedModel, device: Device, requests: list[Request], **options: Any
) -> dict[int, list[int]]:
    """What the requests say when run together; the device is closed."""
    try:
        return await HandDriver(model, device, requests, **options).run()
    finally:
        device.close()
        await asyncio.sleep(0)
