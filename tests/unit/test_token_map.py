"""The compressed token map: which tokens are one word for the Engram memory (model_spec 2.11)."""

from __future__ import annotations

import re
import unicodedata

import msgspec
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from stepahead.engine.model.v41.config import ConfigError, ModelConfig, parse_config
from stepahead.engine.model.v41.token_map import compressed_token_map, engram_token_map, normalised

from .model_documents import tiny_document

# The Unicode property White_Space; str.strip() would also remove U+001C..U+001F.
WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)


def byte_level(text: str) -> str:
    """`text` in the alphabet of a byte-level vocabulary."""
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return splitter.pre_tokenize_str(text)[0][0]


def tokenizer_of(texts: list[str], pieces: list[str] = []) -> Tokenizer:  # noqa: B006 - never changed
    """A byte-level tokenizer whose ids 0.. are the given texts, then raw vocabulary strings, then <s>."""
    vocabulary = {entry: i for i, entry in enumerate([*map(byte_level, texts), *pieces])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<s>", special=True)])
    return tokenizer


def compressed(texts: list[str]) -> list[int]:
    return compressed_token_map(tokenizer_of(texts), len(texts)).tolist()


def test_case_marks_and_surrounding_space_do_not_count() -> None:
    assert compressed(["hello", " Hello", "HELLO", "h\u00e9llo", "help", "\thello\n"]) == [0, 0, 0, 0, 1, 0]


def test_ids_follow_the_first_appearance() -> None:
    assert compressed(["b", "a", "B", "c", "A"]) == [0, 1, 0, 2, 1]


def test_spacing_marks_count_as_marks_too() -> None:
    """U+0903 is category Mc, U+20DD is Me: removing Mn alone would keep both."""
    assert compressed(["\u0915", "\u0915\u0903", "a", "a\u20dd", "a\u0301"]) == [0, 0, 1, 1, 1]


def test_compatibility_forms_are_one() -> None:
    assert compressed(["fi", "\ufb01", "\uff26\uff29", "1", "\u00b9", "\u2460"]) == [0, 0, 0, 1, 1, 1]


def test_white_space_is_one_word_and_more_than_nothing() -> None:
    assert compressed([" ", "  ", "\n", "\t \r\n", "a b", "a \n b"]) == [0, 0, 0, 0, 1, 1]


def test_white_space_other_than_breaks_falls_back_to_itself() -> None:
    """Stripping leaves nothing, so the token keeps its own text."""
    assert compressed(["\u2028", "\u2029", "\x0b", "\x0c"]) == [0, 1, 2, 3]


def test_a_token_of_marks_only_keeps_its_own_text() -> None:
    assert compressed(["\u0301", "\u0302", "\u0301\u0301"]) == [0, 1, 2]


def test_separators_that_unicode_does_not_call_white_space_stay() -> None:
    assert normalised("\x1ca") == "\x1ca"
    assert normalised("\x85a\u3000") == "a"


def test_greek_sigma_is_lowered_letter_by_letter() -> None:
    assert normalised("\u039f\u03a3") == "\u03bf\u03c3"


def test_pieces_of_a_character_keep_their_identity() -> None:
    euro = byte_level("\u20ac")
    pieces = [euro[0], euro[1], euro[2]]
    tokenizer = tokenizer_of(["a"], pieces)
    assert compressed_token_map(tokenizer, 4).tolist() == [0, 1, 2, 3]


def test_special_tokens_count_as_their_text() -> None:
    tokenizer = tokenizer_of(["<S>", "a"])
    assert compressed_token_map(tokenizer, 3).tolist() == [0, 1, 0]


def test_ids_without_a_token_share_one_id() -> None:
    tokenizer = tokenizer_of(["a", "b"])
    assert compressed_token_map(tokenizer, 6).tolist() == [0, 1, 2, 3, 3, 3]


def declaring(ids: int) -> ModelConfig:
    config = parse_config(tiny_document())
    return msgspec.structs.replace(config, vocab_size=6, engram_compressed_vocab_size=ids)


def test_a_model_without_compression_hashes_raw_ids() -> None:
    assert engram_token_map(declaring(0), None).tolist() == list(range(6))


def test_the_declared_number_of_ids_is_checked() -> None:
    tokenizer = tokenizer_of(["a", "A", "b"])  # and <s>; ids 4 and 5 have no token
    assert engram_token_map(declaring(3), tokenizer).tolist() == [0, 0, 1, 2, 3, 3]
    with pytest.raises(ConfigError, match="engram_compressed_vocab_size is 4; allowed: 3, which"):
        engram_token_map(declaring(4), tokenizer)
    with pytest.raises(ConfigError, match="allowed: 0 for a model without a tokenizer"):
        engram_token_map(declaring(3), None)


def by_the_definition(text: str) -> str:
    """The specified steps on Python's Unicode tables."""
    text = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    text = "".join(c.lower() for c in text if not unicodedata.category(c).startswith("M"))
    text = re.sub(r"[ \t\r\n]+", " ", text)
    return text if text == " " else text.strip(WHITE_SPACE)


def test_normalisation_follows_the_definition() -> None:
    """On the code points of Unicode 3.2: newer ones depend on the age of the tables."""
    for code in range(0x3400):
        if unicodedata.ucd_3_2_0.category(chr(code)) != "Cn":
            for text in (chr(code), f" {chr(code)}X ", f"a{chr(code)}"):
                assert normalised(text) == by_the_definition(text), hex(code)
