"""Engines whose device takes scripted time and computes nothing: every microsecond measured is the host's.

The real actors, streams and device interface run; only the runner is replaced, by one that answers each step
with prepared tokens. The hashed model of the tests would do as well, but its numpy forward runs on the loop's
thread and would be measured along.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from stepahead import Engine, EngineConfig
from stepahead.devices.device import Device, Ticket
from stepahead.devices.simulated import Latency, Observer, SimulatedDevice
from stepahead.engine.backend import Backend, Opener
from stepahead.engine.model.runner import ModelFacts, Runner, RunnerShape, SamplePlan, StepPlan, StepResult
from stepahead.engine.opening import Opening
from stepahead.engine.sizing import runner_shape
from stepahead.engine.text.tokenizer import Tokenizer
from stepahead.engine.types import Request, ResolvedParams

BLOCK, CONTEXT, END = 128, 4096, 1
VOCABULARY = 129280
LONGEST = 1 << 20
"""Tokens of the longest sequence the model knows."""


def facts_of(drafts: int, vocabulary: int = VOCABULARY) -> ModelFacts:
    return ModelFacts(
        vocab_size=vocabulary,
        eos_token_ids=(END,),
        max_positions=LONGEST + 2 * (drafts + 1),
        block_tokens=BLOCK,
        block_bytes=1,
        state_bytes=1,
        draft_tokens=drafts,
        backtracking=drafts + 1,
        hit_margin=1,
    )


class PreparedRunner(Runner):
    """Answers every step with random tokens that end nothing, unless `ends`; half of the drafts are right."""

    ends = False
    """While set, every token is the end id."""
    confident = False
    """While set, steps report confidences."""

    def __init__(self, facts: ModelFacts, shape: RunnerShape, device: Device) -> None:
        self.facts, self.shape = facts, shape
        self._device = device
        self._plan: StepPlan | None = None  # the step whose forward was launched last
        self._tickets: dict[Ticket, StepPlan] = {}
        self._random = np.random.default_rng(0)
        width = shape.draft_tokens + 1
        slots = 1 + shape.sequence_slots
        self._tokens = self._random.integers(END + 1, facts.vocab_size, (16, slots, width), dtype=np.int32)
        self._accepted = self._random.integers(0, width, (16, slots), dtype=np.int32)
        self._confidences = self._random.random((16, slots, width - 1), dtype=np.float32)
        self._finite = np.ones(slots, dtype=np.bool_)
        self.on_collect: Callable[[], None] = lambda: None

    def launch_forward(self, plan: StepPlan) -> None:
        self._plan = plan
        self._device.compute.enqueue(_nothing, f"forward:{plan.step}")

    def launch_sample(self, plan: SamplePlan) -> Ticket:
        assert self._plan is not None
        stream = self._device.compute
        stream.enqueue(_nothing, f"sample:{plan.step}")
        ticket = self._device.watch(stream.record(), asyncio.get_running_loop())
        self._tickets[ticket] = self._plan
        return ticket

    def collect(self, ticket: Ticket) -> StepResult:
        plan = self._tickets.pop(ticket)
        if ticket.error is not None:
            raise ticket.error
        self.on_collect()
        layout, turn = plan.layout, plan.step % 16
        count, decode = layout.slots.size, layout.decode_count
        emitted = np.where(layout.samples, self._accepted[turn, :count] + 1, 0).astype(np.int32)
        emitted[decode:] = layout.samples[decode:]
        return StepResult(
            step=plan.step,
            tokens=np.full_like(self._tokens[turn, :count], END) if self.ends else self._tokens[turn, :count],
            emitted=emitted,
            drafted=layout.query_lengths - 1,
            positions=plan.first_positions,
            finite=self._finite[:count],
            confidences=self._confidences[turn, :count] if self.confident else None,
        )

    def close(self) -> None:
        self._tickets.clear()


def _nothing() -> None:
    pass


def simulated_opener(
    *,
    drafts: int = 0,
    latency: Latency = lambda label: 0.0,
    observe: Observer = lambda label, start, end: None,
    real_time: bool = False,
    tokenizer: Tokenizer | None = None,
    on_open: Callable[[PreparedRunner], None] = lambda runner: None,
) -> Opener:
    """Opens a prepared runner on a simulated device. With a tokenizer, its vocabulary is the model's."""
    vocabulary = VOCABULARY if tokenizer is None else tokenizer.vocab_size

    async def open_backend(config: EngineConfig) -> Backend:
        loop = asyncio.get_running_loop()
        device = SimulatedDevice(loop, latency=latency, observe=observe, real_time=real_time)
        facts = facts_of(drafts, vocabulary)
        runner = PreparedRunner(facts, runner_shape(config, facts, device.memory().free), device)
        on_open(runner)
        return Backend(runner, device, tokenizer)

    return open_backend


def knobs(sequences: int, **others: Any) -> EngineConfig:
    """An engine for exactly so many sequences, with room for each of them to the end of its context."""
    config = {"max_sequences": sequences, "max_step_rows": 8192, "prefill_chunk": 512, "max_context": CONTEXT}
    return EngineConfig(**{**config, **others})


def open_simulated(config: EngineConfig, **options: Any) -> Opening[Engine]:
    """An engine on `simulated_opener`."""
    return Engine.open(config=config, opener=simulated_opener(**options))


def prompt_of(random: np.random.Generator, vocabulary: int = VOCABULARY) -> list[int]:
    """100 to 227 tokens: spread over a block, so that its boundaries are crossed at a steady rate."""
    length = 100 + int(random.integers(BLOCK))
    return [int(token) for token in random.integers(END + 1, vocabulary, size=length)]


def request_of(key: int, random: np.random.Generator) -> Request:
    """The same as the actors receive it, to be generated until the context is full."""
    tokens = np.array(prompt_of(random), dtype=np.int32)
    params = ResolvedParams(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        seed=key,
        max_output=CONTEXT - tokens.size,
        min_output=0,
        end_ids=(END,),
        stop=(),
        include_stop=False,
        logprobs=-1,
        detokenize=True,
    )
    return Request(
        key=key,
        group=key,
        choice=0,
        leader=key,
        label=None,
        prompt=tokens.tobytes(),
        params=params,
        priority=0,
        arrival=0.0,
        deadline=None,
        salt=b"",
    )
