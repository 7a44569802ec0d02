"""Prompts encode to the official ids, over the real vocabulary."""

from __future__ import annotations

import functools

import pytest

from stepahead.recipe.encoding.encoder import PromptEncoder

from . import golden
from .test_golden_render import CASES
from .v4_vocabulary import vocabulary

WITH_IDS = [case_id for case_id, case in CASES.items() if "token_ids" in case["expect"]["v4"]]


@functools.cache
def encoder(version: str) -> PromptEncoder:
    return PromptEncoder(vocabulary(), version)


@pytest.mark.parametrize("version", ["v4", "v4.1"])
@pytest.mark.parametrize("case_id", WITH_IDS)
def test_ids_are_the_official_ones(case_id: str, version: str) -> None:
    case = CASES[case_id]
    rendered = encoder(version).render(golden.conversation(case["input"]["conversation"]))
    assert encoder(version).encode(rendered).tolist() == case["expect"][version]["token_ids"]
