"""Sequences with every mix of options, their tables, and drafts behind them: input for both twins."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from stepahead.devices.kernels.reference.sampling.tables import SampledSequences, SamplingTables
from stepahead.engine.model.runner import RunnerShape
from stepahead.engine.model.v41.sampling_slots import SamplingSlots
from stepahead.engine.sampling.edits import edit_rows
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.types import Occupant
from tests.unit.test_processing import newcomer

DRAFTS = 2
SLOTS = 10
DECODES, PROMPTS = 5, 1


class Case(NamedTuple):
    logits: Tensor
    sequences: SampledSequences
    drafts: Tensor
    tables: SamplingTables


def slots_of(occupants: list[Occupant], vocab: int, device: torch.device, *, wide: bool) -> SamplingSlots:
    shape = RunnerShape(
        sequence_slots=SLOTS, snapshot_slots=0, blocks=9, table_columns=4, max_rows=64, max_positions=400,
        draft_tokens=DRAFTS, max_stop_ids=4, max_logprobs=5, max_listed_ids=64,
    )  # fmt: skip
    slots = SamplingSlots(shape, vocab, device)
    if wide:
        slots.widen(shape.max_listed_ids)
    slots.update(SamplingTable(shape).occupy(occupants), edit_rows(occupants))
    return slots


def some_case(vocab: int, seed: int, device: torch.device, *, wide: bool = True) -> Case:
    """Decodes with one to three rows, then prompts; every kind of request among them."""
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    used = chance.sample(range(1, SLOTS + 1), DECODES + PROMPTS)
    occupants = [newcomer(chance, slot, vocab) for slot in used]
    tables = slots_of(occupants, vocab, device, wide=wide).tables()
    origin = np.array([len(o.request.prompt) // 4 for o in occupants])
    output = np.array([o.output for o in occupants])
    lengths = numbers.integers(1, DRAFTS + 2, size=DECODES + PROMPTS)
    first = origin + output - 1
    first[DECODES:] = origin[DECODES:] + output[DECODES:] - lengths[DECODES:]
    rows = int(lengths[:DECODES].sum()) + PROMPTS
    logits = (numbers.standard_normal((rows, vocab)) * 3).astype(np.float32)
    logits[::3] = np.round(logits[::3])  # ties
    drafts = numbers.integers(vocab, size=(SLOTS + 1, DRAFTS))
    return Case(
        torch.from_numpy(logits).to(device),
        SampledSequences(
            *(torch.from_numpy(np.array(x)).long().to(device) for x in (used, first, lengths)), DECODES
        ),
        torch.from_numpy(drafts).to(device),
        tables,
    )
