"""Prompt, decode and draft of the built-in model: the Triton set, interpreted, against the reference set."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from stepahead.devices.kernels.operations import REFERENCE, Operations
from stepahead.engine.model.opening import BUILT_IN, describe, load_model
from stepahead.engine.model.v41.batch import SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.numerics import exact

from .comparing import relative_error

pytest.importorskip("triton")

from stepahead.devices.kernels.triton.operations import TRITON

PROMPTS = ([400, 17, 923, 88, 3001], [5, 612, 7])


def run(operations: Operations, device: torch.device) -> list[Tensor]:
    """Logits of two prompts, of a decode row each, and of the drafts after that."""
    described = describe(BUILT_IN, exact(torch.float32))
    model = load_model(described, device, operations=operations)
    caches = model.new_caches(CacheShape(blocks=3, state_slots=3, max_rows=16))

    def chunks(tokens: list[list[int]], firsts: list[int]) -> list[SequenceChunk]:
        return [
            SequenceChunk(ids, first, slot + 1, [slot + 1])
            for slot, (ids, first) in enumerate(zip(tokens, firsts, strict=True))
        ]

    def forward(tokens: list[list[int]], firsts: list[int]) -> Tensor:
        return model.forward(build_batch(chunks(tokens, firsts), device, ngram=4), caches).logits

    lengths = [len(prompt) for prompt in PROMPTS]
    prefilled = forward([list(prompt) for prompt in PROMPTS], [0, 0])
    decoded = forward([[99], [1234]], lengths)
    anchor, slots = torch.tensor(lengths, device=device), torch.tensor([1, 2], device=device)
    drafts = model.draft(torch.tensor([31, 32], device=device), anchor, slots, caches)
    return [prefilled, decoded, drafts.base_logits, drafts.hidden]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_whole_step_of_the_triton_set_equals_the_reference(device: torch.device) -> None:
    for out, expected in zip(run(TRITON, device), run(REFERENCE, device), strict=True):
        assert relative_error(out, expected) < 2e-6
