"""Fixtures of the fidelity tests: slow forwards run once per session."""

from __future__ import annotations

import pytest

from .golden import Golden


@pytest.fixture(scope="session")
def golden() -> Golden:
    return Golden.load()
