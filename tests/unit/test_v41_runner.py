"""The model behind the runner interface, driven by hand-made plans on a device that computes at once."""

from __future__ import annotations

import asyncio
import math
from asyncio import AbstractEventLoop
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

import msgspec
import numpy as np
import pytest
import torch

from stepahead.devices.device import Ticket
from stepahead.engine.model.runner import (
    NO_TOKEN,
    BatchLayout,
    EditRows,
    RunnerShape,
    SamplePlan,
    SamplingRows,
    StepPlan,
    StepResult,
)
from stepahead.engine.model.v41.batch import SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import exact
from stepahead.engine.model.v41.runner import V41Runner, model_facts
from stepahead.engine.model.v41.weights import load_weights
from stepahead.engine.sampling.edits import edit_rows
from stepahead.engine.scheduling.verification import deal, even_split, survivals
from stepahead.engine.types import Occupant, TokenEdits
from tests.fidelity.configurations import small_config
from tests.fidelity.fast_path import NamedTensors
from tests.fidelity.random_weights import random_weights

from .hashed_driver import request

CPU = torch.device("cpu")
PROMPTS = {1: list(range(3, 40)), 2: list(range(50, 57)), 3: [60, 61]}
SLOTS = sorted(PROMPTS)


EDITS = TokenEdits(
    presence=0.3,
    frequency=0.5,
    repetition=1.4,
    bias=((5, 2.0), (9, -math.inf), (30, 1.0)),
    allowed=tuple(range(50)),
    bad_words=((5, 30), (30, 5, 30)),
)


class ImmediateStream:
    def enqueue(self, work: object, label: str = "") -> None:
        work()  # type: ignore[operator]

    def record(self) -> None:
        return None


class ImmediateDevice:
    """Runs work inside `enqueue`; every event is reached when it is recorded."""

    compute = ImmediateStream()

    def watch(self, event: None, loop: AbstractEventLoop) -> Ticket:
        ticket = Ticket()
        ticket.settle()
        return ticket


@cache
def model() -> Model:
    config, numerics = small_config(), exact(torch.float64)
    weights = load_weights(config, NamedTensors(random_weights(config)), numerics, CPU)
    return Model(config, weights, numerics)


def int32(values: object) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def layout(lengths: list[int], decode_count: int, samples: list[bool] | None = None) -> BatchLayout:
    starts = np.cumsum([0, *lengths[:-1]])
    return BatchLayout(
        slots=int32(SLOTS[: len(lengths)]),
        sequence_keys=np.arange(len(lengths)),
        admissions=np.arange(len(lengths)),
        query_lengths=int32(lengths),
        row_starts=int32(starts),
        reach=int32(lengths),
        samples=np.array(samples or [True] * len(lengths)),
        decode_count=decode_count,
        rows=sum(lengths),
    )


@dataclass
class Sampling:
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    min_output: int = 0
    end_id: int = NO_TOKEN
    edits: TokenEdits | None = None
    processed: bool = False

    def rows(self) -> SamplingRows:
        count = len(SLOTS)
        return SamplingRows(
            slots=int32(SLOTS),
            temperature=np.full(count, self.temperature, np.float32),
            top_k=int32([self.top_k] * count),
            top_p=np.full(count, self.top_p, np.float32),
            min_p=np.full(count, self.min_p, np.float32),
            seed=np.array([5, 6, 2**63 + 7], np.uint64),
            choice=int32([0] * count),
            origin=int32([len(PROMPTS[s]) for s in SLOTS]),
            min_output=int32([self.min_output] * count),
            end_ids=int32([[self.end_id, NO_TOKEN]] * count),
            logprobs=int32([2] * count),
            processed=np.full(count, self.processed),
            forced=int32([NO_TOKEN] * count),
            most_drafts=int32([1024] * count),
        )

    def edit_rows(self) -> EditRows | None:
        made = [request(slot, PROMPTS[slot], edits=self.edits) for slot in SLOTS]
        return edit_rows([Occupant(slot=r.key, request=r, output=0) for r in made])


def nothing_new(rows: SamplingRows) -> SamplingRows:
    return SamplingRows(**{name: getattr(rows, name)[:0] for name in rows.__struct_fields__})


@dataclass
class Driver:
    """Feeds the prompts in chunks of `chunk`, then decodes with `drafts` drafts a step."""

    drafts: int
    sampling: Sampling = field(default_factory=Sampling)
    chunk: int = 64
    spare: tuple[int, ...] = ()  # drafts of all sequences together, dealt by the device, step by step in turn
    most: tuple[int, ...] = (1024, 1024, 1024)
    rest: int = 0  # every so many decode steps leave no drafts
    results: list[StepResult] = field(default_factory=list)
    output: dict[int, list[int]] = field(default_factory=lambda: {s: [] for s in SLOTS})

    def __post_init__(self) -> None:
        self.drafted = True
        shape = RunnerShape(
            sequence_slots=3, snapshot_slots=1, blocks=9, table_columns=4, max_rows=128, max_positions=512,
            draft_tokens=self.drafts, max_stop_ids=2, max_logprobs=3,
        )  # fmt: skip
        facts = model_facts(model().config, model().numerics)
        self.runner = V41Runner(model(), facts, shape, ImmediateDevice())  # type: ignore[arg-type]

    async def run(self, tokens: int) -> dict[int, list[int]]:
        self._prefill()
        while min(map(len, self.output.values())) < tokens:
            self._decode()
        return {slot: ids[:tokens] for slot, ids in self.output.items()}

    def _prefill(self) -> None:
        done = {s: 0 for s in SLOTS}
        table = int32([[s, c, 1 + 2 * (s - 1) + c] for s in SLOTS for c in range(2)])
        while any(done[s] < len(PROMPTS[s]) for s in SLOTS):
            # A finished prompt waits, so every step still lists the slots in one order.
            lengths = [min(self.chunk, len(PROMPTS[s]) - done[s]) for s in SLOTS]
            if 0 in lengths:
                self._prefill_rest(done)
                return
            last = [done[s] + n == len(PROMPTS[s]) for s, n in zip(SLOTS, lengths, strict=True)]
            self._step(layout(lengths, 0, last), done, table)
            table = table[:0]
            for s, n in zip(SLOTS, lengths, strict=True):
                done[s] += n

    def _prefill_rest(self, done: dict[int, int]) -> None:
        """Only slot 1's prompt is longer than one chunk in these tests."""
        while done[1] < len(PROMPTS[1]):
            count = min(self.chunk, len(PROMPTS[1]) - done[1])
            self._step(
                layout([count], 0, [done[1] + count == len(PROMPTS[1])]), done, int32([]).reshape(0, 3)
            )
            done[1] += count

    def _step(self, made: BatchLayout, done: dict[int, int], table: np.ndarray) -> None:
        slots = made.slots.tolist()
        lengths = dict(zip(slots, made.query_lengths.tolist(), strict=True))
        history = [([NO_TOKEN] * 3 + PROMPTS[s][: done[s]])[-3:] for s in slots]
        chunks = [PROMPTS[s][done[s] : done[s] + lengths[s]] for s in slots]
        plan = StepPlan(
            step=len(self.results),
            layout=made,
            first_positions=int32([done[s] for s in slots]),
            chunk_tokens=int32([t for chunk in chunks for t in chunk]),
            chunk_history=int32(history),
            chunk_ends=int32([len(PROMPTS[s]) for s in slots]),
            table_updates=table,
            state_copies=int32([]).reshape(0, 2),
        )
        self._launch(plan)

    def _decode(self) -> None:
        made, step = layout([self.drafts + 1] * 3, 3), len(self.results)
        if self.spare:
            spare = self.spare[step % len(self.spare)] if self.drafted else 0
            lengths = even_split(np.minimum(int32(self.most), self.drafts), spare) + 0
            made = msgspec.structs.replace(layout(lengths.tolist(), 3), reach=made.reach)
        self.drafted = not self.rest or step % self.rest > 0
        plan = StepPlan(
            redeal=bool(self.spare),
            drafts=self.drafted,
            step=len(self.results),
            layout=made,
            first_positions=int32([200, 200, 200]),  # optimistic: only an upper bound, never a position
            chunk_tokens=int32([]),
            chunk_history=int32([]).reshape(0, 3),
            chunk_ends=int32([]),
            table_updates=int32([]).reshape(0, 3),
            state_copies=int32([]).reshape(0, 2),
        )
        self._launch(plan)

    def _launch(self, plan: StepPlan) -> None:
        rows = msgspec.structs.replace(self.sampling.rows(), most_drafts=int32(self.most))
        self.runner.launch_forward(plan)
        result = self.runner.collect(
            self.runner.launch_sample(
                SamplePlan(
                    step=plan.step,
                    updates=rows if not self.results else nothing_new(rows),
                    logprobs=2,
                    all_greedy=self.sampling.temperature == 0,
                    edits=self.sampling.edit_rows() if not self.results else None,
                )
            )
        )
        assert result.finite.all()
        self.results.append(result)
        for row, slot in enumerate(plan.layout.slots.tolist()):
            self.output[slot] += result.tokens[row][: result.emitted[row]].tolist()


def generate(drafts: int, sampling: Sampling, tokens: int = 8, chunk: int = 64) -> dict[int, list[int]]:
    return asyncio.run(Driver(drafts, sampling, chunk).run(tokens))


def plain_greedy(prompt: list[int], tokens: int) -> list[int]:
    """One sequence straight over the model, one token a forward."""
    caches = model().new_caches(CacheShape(3, 2, 128))
    seen, fed, chosen = list(prompt), 0, []
    while len(chosen) < tokens:
        chunk = SequenceChunk(seen[fed:], fed, 1, [1, 2], history=seen[max(fed - 3, 0) : fed])
        fed = len(seen)
        logits = model().forward(build_batch([chunk], CPU, ngram=4), caches).logits
        chosen.append(int(logits[-1].argmax()))
        seen.append(chosen[-1])
    return chosen


def test_greedy_output_is_the_plain_models() -> None:
    output = generate(0, Sampling())
    assert output == {s: plain_greedy(PROMPTS[s], 8) for s in SLOTS}


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(0.8),
        Sampling(1.2, top_k=12, top_p=0.9),
        Sampling(edits=EDITS),
        Sampling(0.9, min_p=0.01, edits=EDITS),
    ],
    ids=["greedy", "temperature", "filtered", "edited", "edited and filtered"],
)
def test_text_does_not_depend_on_drafts(sampling: Sampling) -> None:
    without = generate(0, sampling)
    assert generate(2, sampling) == without
    assert generate(5, sampling) == without


SPLITS = [
    ((0, 15, 7, 1, 4, 11), (1024, 1024, 1024), 0),
    ((6, 3, 0, 5), (5, 1, 0), 0),
    ((7, 2, 15), (1024, 1024, 1024), 3),
]


@pytest.mark.parametrize(("spare", "most", "rest"), SPLITS, ids=["any total", "caps", "steps without drafts"])
@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.9, min_p=0.01, edits=EDITS)], ids=["greedy", "all"]
)
def test_text_does_not_depend_on_how_rows_are_dealt(
    sampling: Sampling, spare: tuple[int, ...], most: tuple[int, ...], rest: int
) -> None:
    driver = Driver(5, sampling, spare=spare, most=most, rest=rest)
    assert asyncio.run(driver.run(12)) == generate(0, sampling, tokens=12)


@pytest.mark.parametrize(("spare", "most", "rest"), SPLITS[:2])
def test_the_device_deals_by_the_confidences_of_the_step_before(
    spare: tuple[int, ...], most: tuple[int, ...], rest: int
) -> None:
    driver = Driver(5, spare=spare, most=most)
    asyncio.run(driver.run(12))
    splits = set()
    for before, result in pairwise(driver.results):
        assert before.confidences is not None
        caps, total = np.minimum(int32(most), 5), spare[result.step % len(spare)]
        expected = deal(survivals(before.confidences), caps, total) - 1
        assert result.drafted.tolist() == expected.tolist()
        assert (result.emitted <= result.drafted + 1).all()
        splits.add(tuple(result.drafted.tolist()))
    assert len(splits) > len(spare), "the split never followed the confidences"


def test_edits_do_what_they_say() -> None:
    """Nothing banned or not allowed, no bad word, fewer repetitions than without penalties."""
    edited = generate(5, Sampling(edits=EDITS), tokens=24)
    free = generate(5, Sampling(), tokens=24)
    for tokens in edited.values():
        assert 9 not in tokens
        assert max(tokens) < 50
        assert (5, 30) not in pairwise(tokens)
    assert sum(len(set(tokens)) for tokens in edited.values()) > sum(len(set(t)) for t in free.values())


@pytest.mark.parametrize("drafts", [0, 5])
def test_processed_logprobs_of_a_certain_token_are_zero(drafts: int) -> None:
    driver = Driver(drafts, Sampling(1.3, top_k=1, processed=True))
    asyncio.run(driver.run(8))
    for result in driver.results:
        assert result.logprobs is not None
        assert result.top_logprobs is not None
        emitted = np.arange(drafts + 1) < result.emitted[:, None]
        assert (result.logprobs[emitted] == 0).all()
        assert np.isneginf(result.top_logprobs[..., 1][emitted]).all()


def test_text_does_not_depend_on_prompt_chunks() -> None:
    assert generate(2, Sampling(0.8), chunk=10) == generate(2, Sampling(0.8))


def test_min_output_bans_end_ids_until_then() -> None:
    """The first token of the unrestricted run is declared an end id, banned for three tokens."""
    end = generate(0, Sampling())[1][0]
    output = generate(2, Sampling(min_output=3, end_id=end), tokens=10)
    assert end not in output[1][:3]


def test_positions_report_the_true_first_row() -> None:
    driver = Driver(2)
    asyncio.run(driver.run(8))
    position = np.array([len(PROMPTS[s]) for s in SLOTS])
    for result in driver.results[1:]:
        assert result.positions.tolist() == position.tolist()
        position = position + result.emitted


def test_logprobs_are_the_models_and_cover_exactly_the_emitted_tokens() -> None:
    driver = Driver(2, Sampling(0.8))
    asyncio.run(driver.run(6))
    for result in driver.results:
        assert result.logprobs is not None
        assert result.top_logprobs is not None
        emitted = np.arange(3) < result.emitted[:, None]
        assert (result.logprobs[emitted] < 0).all()
        assert (result.logprobs[~emitted] == 0).all()
        assert (result.top_logprobs[..., 0][emitted] >= result.logprobs[emitted]).all()
