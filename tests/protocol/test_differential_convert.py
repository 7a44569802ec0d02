"""Random request bodies, valid and broken, convert as the official codec converts them.

Equal are: whether a body is accepted, the conversation and every option, and of a refusal by conversion the
status and the body. Exceptions are the listed differences in wording.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import golden, official_convert, request_mutations
from .test_differential_render import many

CASES_PER_SEED = 10
_OUR_WORDS = (
    "Invalid tool parameters schema : ",
    "Invalid json schema: ",
    "No tool output found for tool call ",
)


def wording_of(result: dict[str, Any]) -> str:
    """The kind of an error whose wording is not compared (R1, R3, R7), or ""."""
    if result.get("error") == "ValueError":
        return "shape"
    if result.get("error") == "ConversionError":
        message = json.loads(result["body"])["error"]["message"]
        return next((words for words in _OUR_WORDS if message.startswith(words)), "")
    return ""


def is_accident_of_the_parser(ours: dict[str, Any]) -> bool:
    """R2: an array for an object, a number or an object for an enumeration."""
    message = ours.get("message", "")
    return any(part in message for part in ("Expected `object`, got `array`", "Expected `str`", "a string"))


def disagree(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    if ours == theirs or (wording_of(ours) and wording_of(ours) == wording_of(theirs)):
        return False
    return not (ours.get("error") == "ValueError" and is_accident_of_the_parser(ours))


@pytest.mark.parametrize("protocol", ["chat", "messages", "responses"])
def test_conversions_are_equal(protocol: str) -> None:
    @many
    @given(st.integers(0, 2**63))
    def compare(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(CASES_PER_SEED):
            body, options = request_mutations.case(rng, protocol)
            theirs = official_convert.convert(protocol, body, options)
            ours = golden.convert(protocol, body, options)
            assert not disagree(ours, theirs), (body, options, ours, theirs)

    compare()
