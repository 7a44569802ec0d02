"""The raw confidence is what the checkpoint promises; what decides about drafts is its calibrated form."""

from __future__ import annotations

import pytest
import torch

from stepahead.devices.kernels.operations import REFERENCE
from stepahead.devices.kernels.reference.sampling.peaks import peak_log_odds
from stepahead.engine.model.v41.draft import DraftPass
from stepahead.engine.model.v41.weights import DraftWeights

SEQUENCES, BLOCK, DIM, RANK, VOCAB = 3, 4, 8, 4, 11


Pairs = tuple[tuple[float, float], ...]


def draft_pass(temperatures: tuple[float, ...] = (), peaks: Pairs = (), *, scale: float = 1.0) -> DraftPass:
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
    return DraftPass(hidden, base, weights, temperatures, torch.float32, REFERENCE, peaks=peaks)


PREVIOUS = torch.tensor([1, 5, 9])


def odds(made: DraftPass, place: int) -> torch.Tensor:
    return made.acceptance(place, PREVIOUS, made.logits(place, PREVIOUS))


@pytest.mark.parametrize("place", range(BLOCK))
def test_odds_are_the_raw_confidence_by_the_temperature_of_the_place(place: int) -> None:
    temperatures = (0.5, 1.0, 2.0, 3.0)
    made = draft_pass(temperatures)
    raw = made.confidence(place, PREVIOUS)
    assert torch.equal(raw, draft_pass().confidence(place, PREVIOUS))
    assert torch.equal(odds(made, place), raw / temperatures[place])
    assert torch.equal(odds(draft_pass(), place), raw)


@pytest.mark.parametrize("place", range(BLOCK))
def test_a_calibrated_peak_stands_in_for_the_head(place: int) -> None:
    pairs = ((0.5, -1.0), (1.0, 0.0), (2.0, 0.25), (3.0, 1.0))
    made = draft_pass((9.0,) * BLOCK, pairs)
    chance = made.logits(place, PREVIOUS).double().softmax(-1).amax(-1)
    scale, offset = pairs[place]
    expected = scale * (chance.log() - torch.log1p(-chance)) + offset
    assert torch.allclose(odds(made, place).double(), expected, atol=1e-5)


def test_the_peak_of_a_certain_and_of_an_even_distribution() -> None:
    certain, even = torch.full((2, 5), -torch.inf), torch.zeros(2, 5)
    certain[:, 2] = 7.0
    assert torch.equal(peak_log_odds(certain), torch.full((2,), torch.inf))
    assert torch.allclose(peak_log_odds(even), torch.full((2,), -1.3862944), atol=1e-6)  # 1 to 4


def test_log_odds_stay_within_sixty() -> None:
    made = draft_pass(scale=1e6)
    assert (made.confidence(0, PREVIOUS).abs() > 60).all()
    assert torch.equal(odds(made, 0).abs(), torch.full((SEQUENCES,), 60.0))


def test_a_broken_sequence_expects_nothing() -> None:
    made = draft_pass()
    made.hidden[1] = torch.nan
    assert odds(made, 2)[1] == -60.0
    assert odds(made, 2)[[0, 2]].abs().max() < 60.0
