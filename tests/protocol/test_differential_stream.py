"""Random outputs read as the official codec reads them, but for the listed differences."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from . import official, official_stream, our_news, output_cases
from .test_differential_render import many
from .v4_vocabulary import vocabulary

seeds = st.integers(0, 2**63)
CASES_PER_SEED = 10


@many
@given(seeds)
def test_news_of_text_are_equal(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(CASES_PER_SEED):
        plain, whole = output_cases.options(rng), output_cases.text(rng)
        pieces = output_cases.pieces(rng, whole)
        expected, _ = official_stream.parse(pieces, plain)
        if output_cases.is_deliberate_difference(whole, expected):
            continue
        mine = our_news.parse(pieces, plain)
        assert output_cases.without_json_padding(mine) == output_cases.without_json_padding(expected), (
            whole,
            plain,
        )


@many
@given(seeds)
def test_news_of_tokens_are_equal(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(CASES_PER_SEED):
        plain, whole = output_cases.options(rng), output_cases.text(rng)
        plain["stop_sequences"] = [stop for stop in plain["stop_sequences"] if ">" not in stop]  # O8
        ids = vocabulary().tokenizer.encode_many([whole], literal=rng.random() < 0.3)[0]
        ids = ids[1:] if ids[:1] == [0] else ids
        chunks = [[token] for token in ids] if rng.random() < 0.5 else [ids[:3], ids[3:]]
        expected, _ = official_stream.parse(chunks, plain, official.tokenizer())
        if output_cases.is_deliberate_difference(whole, expected):
            continue
        mine = our_news.parse_tokens(chunks, plain, vocabulary())
        assert output_cases.without_json_padding(mine) == output_cases.without_json_padding(expected), (
            whole,
            plain,
        )
