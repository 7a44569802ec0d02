"""A step's result survives the one copy it leaves the device in."""

from __future__ import annotations

import pytest
import torch

from stepahead.engine.model.v41.choosing import Drawn
from stepahead.engine.model.v41.results import ResultColumns

SEQUENCES, REACH, DRAFTS = 3, 4, 3


@pytest.mark.parametrize("alternatives", [-1, 0, 1, 5])
@pytest.mark.parametrize("sequences", [0, SEQUENCES])
def test_what_was_packed_is_unpacked(alternatives: int, sequences: int) -> None:
    random = torch.Generator().manual_seed(alternatives + 2)
    asked = alternatives >= 0

    def floats(*size: int) -> torch.Tensor:
        return torch.randn(sequences, *size, generator=random)

    def integers(*size: int) -> torch.Tensor:
        return torch.randint(0, 4096, (sequences, *size), generator=random)

    drawn = Drawn(
        tokens=integers(REACH),
        emitted=integers(),
        finite=integers() % 2 == 0,
        logprobs=floats(REACH) if asked else None,
        top_logprobs=floats(REACH, alternatives) if asked else None,
        top_tokens=integers(REACH, alternatives) if asked else None,
    )
    drafted, first, odds = integers(), integers(), floats(DRAFTS)
    columns = ResultColumns(REACH, DRAFTS, alternatives)
    packed = columns.pack(drawn, drafted, first, odds)
    assert packed.shape == (sequences, columns.width)
    result = columns.unpack(7, packed.numpy())
    assert result.step == 7
    assert result.tokens.tolist() == drawn.tokens.tolist()
    assert result.emitted.tolist() == drawn.emitted.tolist()
    assert result.drafted.tolist() == drafted.tolist()
    assert result.positions.tolist() == first.tolist()
    assert result.finite.tolist() == drawn.finite.tolist()
    assert result.confidences is not None
    assert result.confidences.tolist() == odds.sigmoid().tolist()
    for found, sent in (
        (result.logprobs, drawn.logprobs),
        (result.top_logprobs, drawn.top_logprobs),
        (result.top_tokens, drawn.top_tokens),
    ):
        assert (found is None) == (sent is None)
        if found is not None and sent is not None:
            assert (found.shape, found.tolist()) == (tuple(sent.shape), sent.tolist())
