"""Prompts equal the official ones, character by character and range by range."""

from __future__ import annotations

import pytest

from stepahead.recipe.encoding import v4, v41

from . import golden

FILES = ("render_basic", "render_formats", "render_prefix", "render_special", "render_tools")
CASES = {case["id"]: case for name in FILES for case in golden.load(name)}
VERSIONS = {"v4": v4.render, "v4.1": v41.render}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case_id", CASES)
def test_prompt_is_the_official_one(case_id: str, version: str) -> None:
    case = CASES[case_id]
    expected = case["expect"][version]
    conversation = golden.conversation(case["input"]["conversation"])
    rendered = VERSIONS[version](conversation, golden.special_tokens(case))
    assert rendered.prompt == expected["prompt"]
    assert rendered.special_ranges == [tuple(pair) for pair in expected["special_ranges"]]
    assert golden.plain_images(rendered.image_sources) == expected["image_sources"]
