"""The raw confidence is what the checkpoint promises; what decides about drafts is its calibrated form."""

from __future__ import annotations

import pytest
import torch

from stepahead.devices.kernels.operations import REFERENCE
from stepahead.engine.model.v41.draft import DraftPass
from stepahead.engine.model.v41.weights import DraftWeights

SEQUENCES, BLOCK, DIM, RANK, VOCAB = 3, 4, 8, 4, 11


def draft_pass(temperatures: tuple[float, ...], scale: float = 1.0) -> DraftPass:
    random = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=random)

    one = torch.ones(DIM)
    weights = DraftWeights(
        main_projection=normal(DIM, DIM),
        main_norm=one,
        norm=one,
        markov_embed=normal(VOCAB, RANK),
        markov_head=normal(VOCAB, RANK),
        confidence=normal(1, DIM + RANK) * scale,
        blocks=(),
    )
    hidden, base = normal(SEQUENCES, BLOCK, DIM), normal(SEQUENCES, BLOCK, VOCAB)
    return DraftPass(hidden, base, weights, temperatures, torch.float32, REFERENCE)


@pytest.mark.parametrize("place", range(BLOCK))
def test_acceptance_is_the_raw_confidence_by_the_temperature_of_the_place(place: int) -> None:
    temperatures = (0.5, 1.0, 2.0, 3.0)
    made, previous = draft_pass(temperatures), torch.tensor([1, 5, 9])
    raw = made.confidence(place, previous)
    assert torch.equal(raw, draft_pass(()).confidence(place, previous))
    assert torch.equal(made.acceptance(place, previous), raw / temperatures[place])
    assert torch.equal(draft_pass(()).acceptance(place, previous), raw)


def test_log_odds_stay_within_sixty() -> None:
    made, previous = draft_pass((), scale=1e6), torch.tensor([1, 5, 9])
    assert (made.confidence(0, previous).abs() > 60).all()
    assert torch.equal(made.acceptance(0, previous).abs(), torch.full((SEQUENCES,), 60.0))
