"""A forward never asks for a tensor's value: what a CUDA graph needs, checked on the CPU op by op."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stepahead.engine.model.runner import NO_TOKEN
from stepahead.engine.model.v41 import filtering
from stepahead.engine.model.v41.batch import SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import Numerics, exact, parity
from stepahead.engine.model.v41.processing import Processor
from stepahead.engine.model.v41.weights import load_weights
from tests.fidelity.configurations import small_config
from tests.fidelity.fast_path import NamedTensors
from tests.fidelity.random_weights import random_weights

from .test_processing import PLACES, SLOTS, Twins, newcomer

READS_VALUES = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "unique_dim",
    "_unique2",
    "equal",
    "is_nonzero",
}


class ForbidValueReads(TorchDispatchMode):
    """Raises at the operation that would make the host wait, or make a shape depend on a value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS_VALUES:
            raise AssertionError(f"{name} reads a value")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("numerics", [exact(), exact(torch.float64), parity()], ids=["f32", "f64", "parity"])
def test_mixed_step_and_draft_round_read_no_value(numerics: Numerics) -> None:
    config = small_config()
    cpu = torch.device("cpu")
    weights = load_weights(config, NamedTensors(random_weights(config)), numerics, cpu)
    model = Model(config, weights, numerics)
    caches = model.new_caches(CacheShape(blocks=8, state_slots=4, max_rows=256))
    prompt = SequenceChunk(list(range(3, 53)) * 3, 0, 1, [1, 2])
    model.forward(build_batch([prompt], cpu, ngram=4), caches)
    mixed = [
        SequenceChunk([7], 150, 1, [1, 2], history=[1, 2, 3]),
        SequenceChunk(list(range(5, 45)), 0, 2, [3]),
    ]
    batch = build_batch(mixed, cpu, ngram=4)
    newest, anchor, slots = torch.tensor([9]), torch.tensor([150]), torch.tensor([1])
    with ForbidValueReads():
        model.forward(batch, caches)
        model.draft(newest, anchor, slots, caches).greedy(newest)


@pytest.mark.parametrize("seed", range(4))
def test_a_sampling_pass_reads_no_value_where_nobody_may_wait(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any mix of options; the form for devices that run ahead of the host, on CPU tensors, draws the same."""
    chance, twins = Random(seed), Twins(300)
    twins.occupy([newcomer(chance, slot, 300) for slot in range(1, SLOTS + 1)])
    slots = np.arange(1, SLOTS + 1, dtype=np.int32)
    rows = twins.rows(slots, np.full((SLOTS, PLACES), NO_TOKEN))
    logits = torch.randn(SLOTS, 300, generator=torch.Generator().manual_seed(seed)) * 3
    expected = Processor(twins.tables).draw(logits, rows, 3)
    monkeypatch.setattr(filtering, "host_may_ask", lambda device: False)
    with ForbidValueReads():
        draws = Processor(twins.tables).draw(logits, rows, 3)
        Processor(twins.tables).probabilities(logits, rows)
    assert torch.equal(draws.tokens, expected.tokens)


def test_the_guard_sees_value_reads() -> None:
    with ForbidValueReads(), pytest.raises(AssertionError, match="reads a value"):
        torch.tensor(1).item()
