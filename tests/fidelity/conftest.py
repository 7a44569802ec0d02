"""Fixtures of the fidelity tests: slow forwards run once per session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .golden import Golden
from .small import Small


@pytest.fixture(scope="package", autouse=True)
def _one_thread() -> Iterator[None]:
    """These models are so small that waking a second thread costs more than it computes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def golden() -> Golden:
    return Golden.load()


@pytest.fixture(scope="session")
def small() -> Small:
    return Small.build()
