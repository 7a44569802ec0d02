"""Sampling driven by tables on the device gives what sampling driven by the host's mirrors gives."""

from __future__ import annotations

import asyncio
from functools import cache

import numpy as np
import pytest

from stepahead.devices.kernels.operations import Operations
from stepahead.engine.model.v41.model import Model

from . import test_v41_runner as by_host
from .test_v41_runner import CPU, EDITS, Driver, Sampling


class TableOperations(Operations):
    """The reference, sampling as a GPU's operations do."""

    draws_from_tables = True


@cache
def model() -> Model:
    host = by_host.model()
    return Model(host.config, host.weights, host.numerics, operations=TableOperations())


SAMPLINGS = {
    "greedy": Sampling(),
    "temperature": Sampling(0.8),
    "filtered": Sampling(1.2, top_k=12, top_p=0.9, processed=True),
    "edited": Sampling(edits=EDITS, processed=True),
    "edited and filtered": Sampling(0.9, min_p=0.01, edits=EDITS, min_output=3, end_id=30),
}


@pytest.mark.parametrize(
    ("kind", "drafts"),
    [("greedy", 0), ("temperature", 5), ("filtered", 2), ("edited", 5), ("edited and filtered", 2)],
)
def test_results_are_those_of_the_hosts_form(kind: str, drafts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 24 leave prompts that draw nothing, and one that does so beside others."""
    assert model().device == CPU
    drivers = []
    for made in (by_host.model, model):
        monkeypatch.setattr(by_host, "model", made)
        drivers.append(Driver(drafts, SAMPLINGS[kind], chunk=24))
        asyncio.run(drivers[-1].run(6))
    for expected, own in zip(drivers[0].results, drivers[1].results, strict=True):
        assert own.tokens.tolist() == expected.tokens.tolist()
        assert own.emitted.tolist() == expected.emitted.tolist()
        assert own.drafted.tolist() == expected.drafted.tolist()
        assert own.positions.tolist() == expected.positions.tolist()
        assert own.top_tokens is not None
        assert expected.top_tokens is not None
        assert own.top_tokens.tolist() == expected.top_tokens.tolist()
        assert own.top_logprobs is not None
        np.testing.assert_allclose(own.logprobs, expected.logprobs, atol=1e-6)
        np.testing.assert_allclose(own.top_logprobs, expected.top_logprobs, atol=1e-6)
        if drafts:
            np.testing.assert_allclose(own.confidences, expected.confidences, rtol=1e-6)
