"""Text to ids: who writes the beginning-of-text token, whose special tokens count, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from stepahead.engine.errors import EngineError, InvalidRequestError
from stepahead.engine.text.tokenizer import (
    Tokenizer,
    TokenizerFileError,
    UnencodableTextError,
    UnknownTokenError,
)

from .text_tokenizer import THINK, USER, definition, small_tokenizer

BEGIN, END, PAD, USER_ID, THINK_ID = range(5)


def test_release_policy_puts_one_begin_token_in_front_of_plain_text() -> None:
    tokenizer = small_tokenizer("release")
    assert tokenizer.encode("six")[0] == BEGIN
    assert tokenizer.encode("") == [BEGIN]
    assert tokenizer.encode("six").count(BEGIN) == 1
    assert tokenizer.encode("<｜begin▁of▁sentence｜>six") == tokenizer.encode("six")


def test_native_policy_leaves_the_file_s_own_rule_alone() -> None:
    tokenizer = small_tokenizer("native")
    assert BEGIN not in tokenizer.encode("six")
    value = json.loads(definition())
    value["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "E", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"E": {"id": "E", "ids": [END], "tokens": ["<｜end▁of▁sentence｜>"]}},
    }
    assert Tokenizer(json.dumps(value), compatibility="native").encode("six")[-1] == END
    assert END not in Tokenizer(json.dumps(value), compatibility="release").encode("six")


def test_a_spelled_special_token_counts_unless_the_text_is_literal() -> None:
    tokenizer = small_tokenizer()
    assert tokenizer.encode(f"a{USER}b{THINK}") == [BEGIN, 5 + 97, USER_ID, 5 + 98, THINK_ID]
    literal = tokenizer.encode(f"a{USER}b{THINK}", literal=True)
    assert {BEGIN, USER_ID, THINK_ID}.isdisjoint(literal)
    assert tokenizer.decode(literal) == f"a{USER}b{THINK}"


def test_facts_about_the_vocabulary() -> None:
    tokenizer = small_tokenizer()
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id) == (BEGIN, END, PAD)
    assert tokenizer.special_ids == {BEGIN, END, PAD, USER_ID}
    assert tokenizer.vocab_size == len(tokenizer.token_bytes) == 276
    assert tokenizer.token_id(USER) == USER_ID
    assert tokenizer.spelling(THINK_ID) == THINK
    with pytest.raises(UnknownTokenError, match="<nothing>"):
        tokenizer.token_id("<nothing>")


def test_many_texts_come_back_in_order() -> None:
    tokenizer = small_tokenizer()
    texts = [f"five {i}" * i for i in range(20)]
    assert tokenizer.encode_many(texts) == [tokenizer.encode(text) for text in texts]


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    raw = tokenizers.Tokenizer.from_str(definition())
    raw.enable_truncation(max_length=3)
    raw.enable_padding(length=8)
    assert Tokenizer(raw.to_str()).encode("six six six six") == small_tokenizer().encode("six six six six")


def test_text_that_is_not_unicode_is_the_caller_s_error() -> None:
    with pytest.raises(UnencodableTextError, match="character 2"):
        small_tokenizer().encode("ab\ud800")
    assert issubclass(UnencodableTextError, InvalidRequestError)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"decoder": {"type": "Fuse"}}, "only a byte-level vocabulary"),
        ({"decoder": None}, "only a byte-level vocabulary"),
        ({"model": {"type": "Magic"}}, "not a tokenizer definition"),
    ],
)
def test_an_unusable_definition_is_named(change: dict[str, object], problem: str) -> None:
    with pytest.raises(TokenizerFileError, match=problem):
        Tokenizer(json.dumps(json.loads(definition()) | change))


def test_release_needs_the_begin_token_and_policies_have_names() -> None:
    without = json.loads(definition())
    without["added_tokens"] = without["added_tokens"][1:]
    del without["model"]["vocab"]["<｜begin▁of▁sentence｜>"]
    with pytest.raises(TokenizerFileError, match="release policy"):
        Tokenizer(json.dumps(without))
    assert Tokenizer(json.dumps(without), compatibility="native").begin_id is None
    with pytest.raises(TokenizerFileError, match="'releases' is none of"):
        Tokenizer(definition(), compatibility="releases")


def test_loading_from_a_file_or_its_folder(tmp_path: Path) -> None:
    with pytest.raises(TokenizerFileError, match=str(tmp_path)) as raised:
        Tokenizer.from_file(tmp_path)
    assert isinstance(raised.value, EngineError)
    (tmp_path / "tokenizer.json").write_text(definition(), encoding="utf-8")
    assert Tokenizer.from_file(tmp_path).encode("six") == small_tokenizer().encode("six")
    assert Tokenizer.from_file(tmp_path / "tokenizer.json").encode("six") == small_tokenizer().encode("six")


class _BatchOnly:
    """The library with its lock-holding calls removed."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.encode_batch_fast = tokenizer.encode_batch_fast


def test_c10_every_encode_is_a_batch_because_only_batches_release_the_interpreter_lock() -> None:
    tokenizer = Tokenizer(definition())
    expected = tokenizer.encode("five six"), tokenizer.encode("five six", literal=True)
    tokenizer._tokenizer = _BatchOnly(tokenizer._tokenizer)
    tokenizer.__dict__["_literal"] = _BatchOnly(tokenizer._literal)
    assert (tokenizer.encode("five six"), tokenizer.encode("five six", literal=True)) == expected
