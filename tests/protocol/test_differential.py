"""Generated conversations, requests and outputs: as the official codec, but for the listed differences."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from . import comparing, golden, official_convert
from .comparing import Comparison, Verdict
from .conversation_strategies import conversations

EXAMPLES = int(os.environ.get("STEPAHEAD_DIFFERENTIAL_EXAMPLES", "120"))
CASES_PER_SEED = 10
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
)


def check(comparison: Comparison) -> None:
    verdict, evidence = comparison
    assert verdict is not Verdict.DIFFERENT, evidence


@many
@given(conversations())
def test_prompts_are_equal(plain: dict[str, Any]) -> None:
    check(comparing.prompt(plain))


@many
@given(conversations())
def test_token_ids_are_equal(plain: dict[str, Any]) -> None:
    check(comparing.token_ids(plain))


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_conversions_are_equal(protocol: str) -> None:
    compare_seeds(lambda rng: comparing.request(rng, protocol))


@pytest.mark.parametrize("compare", [comparing.text_output, comparing.token_output])
def test_outputs_are_read_equally(compare: Callable[[random.Random], Comparison]) -> None:
    compare_seeds(compare)


TOOL_CHOICES = [None, "auto", "any", "none", "f", "g", "h", "zz"]


@pytest.mark.parametrize("choice", TOOL_CHOICES)
def test_references_add_the_tools_that_the_choice_leaves(choice: str | None) -> None:
    """Found by 40,000 random cases: a rare meeting of three features of Messages."""
    referred = [{"type": "tool_reference", "tool_name": name} for name in "gh"]
    addition = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "h"}}
    body: dict[str, Any] = {
        "model": "DeepSeek-V4.1-Flash",
        "max_tokens": 100,
        "thinking": {"type": "disabled"},
        "tools": [{"name": name, "input_schema": {"type": "object"}} for name in "fgh"],
        "messages": [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": referred}]},
            {"role": "system", "content": [addition, {"type": "text", "text": "t"}]},
            {"role": "system", "content": [addition]},
        ],
    }
    if choice is not None:
        named = {"type": "tool", "name": choice}
        body["tool_choice"] = named if len(choice) < 3 else {"type": choice}
    assert golden.convert("messages", body, {}) == official_convert.convert("messages", body, {})


def compare_seeds(compare: Callable[[random.Random], Comparison]) -> None:
    @many
    @given(st.integers(0, 2**63))
    def run(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(CASES_PER_SEED):
            check(compare(rng))

    run()
