"""Fused sampling against its readable twin: the same tokens, and log-probabilities to rounding."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from stepahead.devices.kernels.reference.sampling import whole
from stepahead.devices.kernels.reference.sampling.tables import DrawnTokens
from stepahead.devices.kernels.triton import sampling

from .sampling_cases import Case, some_case


def assert_same(made: DrawnTokens, expected: DrawnTokens) -> None:
    assert torch.equal(made.finite, expected.finite)
    assert (
        made.tokens.masked_fill(~made.finite, 0).tolist()
        == expected.tokens.masked_fill(~made.finite, 0).tolist()
    )
    for own, other in zip(made[2:], expected[2:], strict=True):
        assert (own is None) == (other is None)
    if made.logprobs is None or expected.logprobs is None:
        return
    torch.testing.assert_close(made.logprobs, expected.logprobs, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(made.top_logprobs, expected.top_logprobs, atol=2e-5, rtol=1e-5)
    assert torch.equal(made.top_tokens, expected.top_tokens)


def both(case: Case, alternatives: int, bits: torch.Tensor | None = None) -> None:
    asked = {"alternatives": alternatives, "allowed_bits": bits}
    assert_same(sampling.draw_tokens(*case, **asked), whole.draw_tokens(*case, **asked))


@pytest.mark.parametrize("vocab", [60, 257])
@pytest.mark.parametrize("seed", range(3))
def test_any_mix_of_options(vocab: int, seed: int, device: torch.device) -> None:
    both(some_case(vocab, seed, device), 3)
