"""Long texts are cut where cutting changes no id, in both vocabularies at hand."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path

import pytest

import stepahead.engine
from stepahead.recipe.conversation import Conversation, UserMessage
from stepahead.recipe.encoding import long_text
from stepahead.recipe.encoding.encoder import PromptEncoder
from stepahead.recipe.special_tokens import DEFAULT_SPECIAL_TOKENS
from stepahead.recipe.vocabulary import Vocabulary

from . import v4_vocabulary
from .fake_engine import tokenizer

FRAGMENTS = (
    *("a", "b", "A", "\n", "\n", "\n\n", "\r", "x\ny", "  ", "\t", "1", "23", "。", "你", "é", ".", "!"),
    *("\u2028", "\x0b", "Hello", "don't", "==", " \n", "\nz", "\n1", "\n "),
)


@pytest.fixture(params=["built-in", "V4"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    if request.param == "V4":
        return v4_vocabulary.vocabulary()
    return Vocabulary(tokenizer(), DEFAULT_SPECIAL_TOKENS)


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_text, "LONG", 30)
    monkeypatch.setattr(long_text, "_PART", 10)


@pytest.mark.usefixtures("short_parts")
def test_parts_have_the_ids_of_the_whole(vocabulary: Vocabulary) -> None:
    assert vocabulary.has_line_starts
    rng, count = random.Random(5), 0
    code = "".join(path.read_text() for path in sorted(Path(stepahead.engine.__file__).parent.glob("*.py")))
    starts = [rng.randrange(len(code) - 2000) for _ in range(100)]
    texts = [code[start : start + 2000] for start in starts]
    texts += ["".join(rng.choice(FRAGMENTS) for _ in range(rng.randrange(300))) for _ in range(1000)]
    whole = vocabulary.tokenizer.encode_many(texts, literal=True)
    for text, ids in zip(texts, whole, strict=True):
        parts = long_text.parts(text)
        assert "".join(parts) == text
        assert list(chain.from_iterable(vocabulary.tokenizer.encode_many(parts, literal=True))) == ids, text
        count += len(parts)
    assert count > 2 * len(texts)


@pytest.mark.parametrize("unit", ["word and\nword ", "x" * 99, "\n"])
def test_a_long_message_has_the_ids_of_its_text(unit: str) -> None:
    vocabulary = Vocabulary(tokenizer(), DEFAULT_SPECIAL_TOKENS)
    text = unit * (450_000 // len(unit))
    encoder = PromptEncoder(vocabulary, cache_characters=0)
    rendered = encoder.render(Conversation(messages=[UserMessage(text)], thinking_mode=False))
    ids = encoder.encode(rendered).tolist()
    begin = ids.index(vocabulary.special_id(DEFAULT_SPECIAL_TOKENS.user)) + 1
    expected = vocabulary.tokenizer.encode_many([text], literal=True)[0]
    assert ids[begin : begin + len(expected)] == expected
