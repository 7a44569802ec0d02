"""A row's work on the device against the definition, and against itself in other company."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from stepahead.engine.config import RequestLimits
from stepahead.engine.model.hashed import HashedModel
from stepahead.engine.model.hashed.choosing import choose, log_softmax, processed
from stepahead.engine.model.hashed.slots import Slots
from stepahead.engine.model.runner import NO_TOKEN, RunnerShape
from stepahead.engine.model.v41 import processing
from stepahead.engine.model.v41.processing import DrawRows, Processor
from stepahead.engine.model.v41.sampling_slots import SamplingSlots
from stepahead.engine.sampling.edits import edit_rows
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.types import Occupant, Request, SamplingParams
from stepahead.engine.validation import validate

from .hashed_driver import request

PLACES = 3
ROUNDS = 4
SLOTS = 12


def limits(vocab: int) -> RequestLimits:
    return RequestLimits(
        vocab_size=vocab, context=400, block_tokens=4, usable_blocks=999, lookahead=8, eos_token_ids=(1,),
        max_logprobs=20, max_stop_ids=4,
    )  # fmt: skip


def params(chance: random.Random, vocab: int) -> SamplingParams:
    """Anything goes, but often little does."""
    few = tuple(chance.sample(range(vocab), 9))
    fields: dict[str, Any] = {"seed": chance.randrange(2**64), "logprobs": chance.choice((None, 2))}

    def sometimes(**more: Any) -> None:
        if chance.random() < 0.5:
            fields.update(more)

    sometimes(temperature=0.0)
    sometimes(top_k=chance.choice((1, 5, vocab - 2)))
    sometimes(top_p=chance.choice((0.1, 0.9, 0.999)))
    sometimes(min_p=chance.choice((0.01, 0.3)))
    sometimes(presence_penalty=chance.uniform(-2, 2), frequency_penalty=chance.uniform(-2, 2))
    sometimes(repetition_penalty=chance.choice((0.7, 1.5)))
    sometimes(logit_bias={few[0]: 8.0, few[1]: -3.0}, banned_token_ids=few[2:4])
    sometimes(bad_words=((few[4], few[5]), (few[5],), (few[4], few[4], few[6])))
    sometimes(min_tokens=3, stop_token_ids=(few[7],))
    sometimes(logprobs_of="processed")
    if chance.random() < 0.3:
        fields["allowed_token_ids"] = (*few, *few[:2])
    return SamplingParams(**fields)


class Twins:
    """The device's tables and the definition's, fed the same newcomers and outputs."""

    def __init__(self, vocab: int) -> None:
        shape = RunnerShape(
            sequence_slots=SLOTS, snapshot_slots=0, blocks=9, table_columns=4, max_rows=64, max_positions=400,
            draft_tokens=PLACES, max_stop_ids=4, max_logprobs=5,
        )  # fmt: skip
        self.vocab = vocab
        self.host = SamplingTable(shape)
        self.tables = SamplingSlots(shape, vocab, torch.device("cpu"))
        self.truth = Slots(HashedModel(draft_tokens=PLACES), shape)
        self.output = np.zeros(SLOTS + 1, dtype=np.int32)

    def occupy(self, occupants: list[Occupant]) -> None:
        rows, edits = self.host.occupy(occupants), edit_rows(occupants)
        self.tables.update(rows, edits)
        self.truth.update_parameters(rows, edits)
        self.output[rows.slots] = [occupant.output for occupant in occupants]

    def rows(self, slots: np.ndarray, ahead: np.ndarray) -> DrawRows:
        counts = (ahead >= 0).sum(-1)
        return DrawRows(
            numbers=torch.arange(slots.size),
            slots=torch.from_numpy(slots.astype(np.int64)),
            output=torch.from_numpy((self.output[slots] + counts).astype(np.int64)),
            ahead=torch.from_numpy(ahead.astype(np.int64)),
            host_slots=slots,
        )

    def check(self, logits: np.ndarray, slots: np.ndarray, ahead: np.ndarray) -> np.ndarray:
        """Draws at these rows on both sides; returns the tokens."""
        rows = self.rows(slots, ahead)
        draws = Processor(self.tables).draw(torch.from_numpy(logits), rows, 3)
        own = self.truth.parameters(slots, lambda row: ahead[row][ahead[row] >= 0])
        output = rows.output.numpy().astype(np.int32)
        assert draws.tokens.tolist() == choose(logits, own, output).tolist()
        assert draws.maxima.isfinite().all()
        scores = log_softmax(processed(logits, own, output))
        for made in draws.reports:
            numbers = made.numbers.numpy()
            truth = scores[numbers, draws.tokens.numpy()[numbers]]
            np.testing.assert_allclose(made.chosen.numpy(), truth, atol=2e-4)
            best = np.sort(scores[numbers], axis=-1)[:, ::-1][:, :3]
            np.testing.assert_allclose(made.top.numpy(), best, atol=2e-4)
        return draws.tokens.numpy().astype(np.int32)

    def emit(self, slots: np.ndarray, tokens: np.ndarray, emitted: np.ndarray) -> None:
        work = self.tables.work[slots]
        for bit in (processing.PENALTY, processing.WORDS):
            chosen = np.flatnonzero(work & bit)
            if chosen.size:
                index = torch.from_numpy(slots[chosen].astype(np.int64))
                own, count = torch.from_numpy(tokens[chosen]).long(), torch.from_numpy(emitted[chosen])
                if bit == processing.PENALTY:
                    self.tables.seen.count(index, slots[chosen], own, count)
                else:
                    self.tables.seen.say(index, own, count)
        for row, slot in enumerate(slots.tolist()):
            if slot in self.truth.edits:
                said = tokens[row][: emitted[row]].tolist()
                self.truth.edits[slot] = self.truth.edits[slot].assuming(said)
        self.output[slots] += emitted.astype(np.int32)


def newcomer(chance: random.Random, slot: int, vocab: int) -> Occupant:
    prompt = [chance.randrange(vocab) for _ in range(chance.randint(1, 30))]
    resolved = validate(np.array(prompt, dtype=np.int32), params(chance, vocab), limits(vocab))
    made: Request = msgspec.structs.replace(request(slot, prompt), params=resolved)
    generated = np.array([chance.choice(prompt) for _ in range(chance.choice((0, 0, 7)))], dtype=np.int32)
    return Occupant(slot=slot, request=made, output=generated.size, generated=generated.tobytes())


@pytest.mark.parametrize("vocab", [60, 5000])
@pytest.mark.parametrize("seed", range(8))
def test_rows_are_processed_as_defined(vocab: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newcomers, a window of assumed tokens behind every slot, any number of them accepted, again."""
    monkeypatch.setattr(processing, "_PIECE", 5 * vocab)
    chance, twins = random.Random(seed), Twins(vocab)
    numbers = np.random.default_rng(seed)
    used = chance.sample(range(1, SLOTS + 1), 8)
    for number in range(ROUNDS):
        arriving = used if number == 0 else chance.sample(used, 2)
        twins.occupy([newcomer(chance, slot, vocab) for slot in arriving])
        drafts = numbers.integers(vocab, size=(len(used), PLACES)).astype(np.int32)
        drafts[:, 1] = np.where(numbers.random(len(used)) < 0.5, drafts[:, 0], drafts[:, 1])
        slots = np.repeat(np.array(used, dtype=np.int32), PLACES + 1)
        place = np.tile(np.arange(PLACES + 1), len(used))[:, None]
        ahead = np.where(np.arange(PLACES) < place, np.repeat(drafts, PLACES + 1, axis=0), NO_TOKEN)
        logits = (numbers.standard_normal((slots.size, vocab)) * 3).astype(np.float32)
        tokens = twins.check(logits, slots, ahead).reshape(len(used), PLACES + 1)
        emitted = numbers.integers(1, PLACES + 2, size=len(used))
        said = np.concatenate((drafts, tokens[:, -1:]), axis=1)
        twins.emit(np.array(used, dtype=np.int32), said, emitted)


@pytest.mark.parametrize("vocab", [60, 5000])
@pytest.mark.parametrize("seed", range(4))
def test_a_row_is_the_same_bit_for_bit_alone_and_among_others(vocab: int, seed: int) -> None:
    chance, twins = random.Random(seed), Twins(vocab)
    twins.occupy([newcomer(chance, slot, vocab) for slot in range(1, SLOTS + 1)])
    slots = np.arange(1, SLOTS + 1, dtype=np.int32)
    ahead = np.full((SLOTS, PLACES), NO_TOKEN)
    logits = torch.randn(SLOTS, vocab, generator=torch.Generator().manual_seed(0)) * 3
    draw = Processor(twins.tables).draw
    together = draw(logits, twins.rows(slots, ahead), 3)
    reported = {n: (r, i) for r in together.reports for i, n in enumerate(r.numbers.tolist())}
    for row in range(SLOTS):
        alone = draw(logits[row : row + 1], twins.rows(slots[row : row + 1], ahead[:1]), 3)
        assert alone.tokens.tolist() == together.tokens[row : row + 1].tolist()
        assert torch.equal(alone.maxima, together.maxima[row : row + 1])
        assert bool(alone.reports) == (row in reported)
        for made in alone.reports:
            among, place = reported[row]
            assert torch.equal(made.chosen, among.chosen[place].view(1))
            assert torch.equal(made.top, among.top[place].view(1, -1))


def test_rows_that_ask_for_nothing_are_neither_copied_nor_edited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A heavy neighbour's work covers its own rows and no others."""
    twins = Twins(50)
    light, heavy = SamplingParams(temperature=0), SamplingParams(frequency_penalty=1.0, top_p=0.5)
    for slot, asked in ((1, light), (2, heavy), (3, light)):
        resolved = validate(np.zeros(3, np.int32), asked, limits(50))
        made = msgspec.structs.replace(request(slot, [0, 0, 0]), params=resolved)
        twins.occupy([Occupant(slot=slot, request=made, output=0)])
    worked: list[list[int]] = []
    piece = Processor._piece

    def watched(self: Processor, logits: torch.Tensor, rows: DrawRows, alternatives: int) -> Any:
        worked.append(rows.numbers.tolist())
        return piece(self, logits, rows, alternatives)

    monkeypatch.setattr(Processor, "_piece", watched)
    slots = np.array([1, 2, 3], dtype=np.int32)
    Processor(twins.tables).draw(torch.randn(3, 50), twins.rows(slots, np.full((3, PLACES), NO_TOKEN)))
    assert worked == [[1]]
