"""Outputs become the official responses and events, in one piece or in many."""

from __future__ import annotations

from typing import Any

import pytest

from . import golden
from .golden_stream import Run, merged

CASES = {case["id"]: case for case in golden.load("stream")}
IN_CHUNKS = {name: case for name, case in CASES.items() if "chunks" in case["input"]}
IN_TEXT = {name: case for name, case in CASES.items() if "text" in case["input"]}


def _run(case: dict[str, Any], chunks: list[dict[str, Any]]) -> Run:
    vocabulary = None
    if case["input"].get("use_tokenizer"):
        from .v4_vocabulary import vocabulary as v4

        vocabulary = v4()
    return Run(case["input"] | {"chunks": chunks}, vocabulary).run(chunks)


@pytest.mark.parametrize("case_id", IN_CHUNKS)
def test_response_is_the_official_one(case_id: str) -> None:
    case = IN_CHUNKS[case_id]
    assert _run(case, case["input"]["chunks"]).response() == golden.normalise(case["expect"]["response"])


@pytest.mark.parametrize("case_id", IN_CHUNKS)
def test_events_are_the_official_ones(case_id: str) -> None:
    case = IN_CHUNKS[case_id]
    events = _run(case, case["input"]["chunks"]).plain_events()
    assert merged(events) == merged(golden.normalise(case["expect"]["events"]))


@pytest.mark.parametrize("case_id", IN_TEXT)
def test_response_does_not_depend_on_the_cut(case_id: str) -> None:
    case = IN_TEXT[case_id]
    text, finish = case["input"]["text"], {"finish": case["input"]["finish"]}
    expected = golden.normalise(case["expect"]["response"])
    cuts = [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))]
    for pieces in cuts:
        chunks = [{"text": piece} for piece in pieces] + [finish]
        assert _run(case, chunks).response() == expected
