"""Random conversations render to the prompts of the official codec and encode to its ids."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

from stepahead.recipe.encoding import v4, v41

from . import golden, official
from .conversation_strategies import conversations
from .test_golden_token_ids import encoder

OURS = {"v4": v4.render, "v4.1": v41.render}
EXAMPLES = int(os.environ.get("STEPAHEAD_DIFFERENTIAL_EXAMPLES", "120"))
many = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
    phases=(Phase.generate, Phase.shrink),
)


@many
@given(conversations())
def test_prompts_are_equal(plain: dict[str, Any]) -> None:
    theirs, mine = official.conversation(plain), golden.conversation(plain)
    for version, render in OURS.items():
        expected, rendered = official.ENCODINGS[version]().render_conversation(theirs), render(mine)
        assert rendered.prompt == expected.prompt
        assert rendered.special_ranges == expected.special_ranges
        assert golden.plain_images(rendered.image_sources) == [
            official.plain_image(source) for source in expected.image_sources
        ]


@many
@given(conversations())
def test_token_ids_are_equal(plain: dict[str, Any]) -> None:
    theirs, mine = official.conversation(plain), golden.conversation(plain)
    for version in OURS:
        expected = official.encoding(version).encode(theirs)
        assert encoder(version).encode(encoder(version).render(mine)).tolist() == expected
