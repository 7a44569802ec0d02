"""Request bodies become the official conversations, and broken ones the official errors."""

from __future__ import annotations

from typing import Any

import pytest

from . import golden

FILES = {
    name: golden.load(name)
    for name in ("convert_chat", "convert_chat_errors", "convert_messages", "convert_responses")
}
CASES = {f"{name}:{case['id']}": case for name, cases in FILES.items() for case in cases}


@pytest.mark.parametrize("case_id", CASES)
def test_conversion_is_the_official_one(case_id: str) -> None:
    case = CASES[case_id]
    given, expected = case["input"], case["expect"]
    result = golden.convert(given["protocol"], given["body"], given.get("options"))
    if expected.get("error") == "ValueError":  # the parsers word these differently
        assert result["error"] == "ValueError"
    else:
        assert result == expected


@pytest.mark.parametrize("case", golden.load("limits"), ids=lambda case: str(case["id"]))
def test_output_limit_is_the_official_one(case: dict[str, Any]) -> None:
    given = case["input"]
    assert golden.resolve_max_tokens(given) == case["expect"]
