"""Ids to text while they arrive: whole characters, no drift, a constant price per token."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import pairwise

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from stepahead.engine.text import detokenizer as detokenizer_module
from stepahead.engine.text.detokenizer import Detokenizer
from stepahead.engine.text.stop_matcher import StopMatcher
from stepahead.engine.text.token_bytes import TokenBytes, byte_level_alphabet, spelled_bytes

from .text_tokenizer import SPLIT_EMOJI, definition, small_tokenizer

LIBRARY = tokenizers.Tokenizer.from_str(definition())
VOCAB = small_tokenizer().vocab_size
BEGIN, END = 0, 1


def bytes_as_tokens(data: bytes) -> list[int]:
    """One token per byte, the finest split there is."""
    return [5 + byte for byte in data]


def deltas(token_ids: list[int], *, skip_special_tokens: bool = True) -> Iterator[str]:
    detokenizer = small_tokenizer().detokenizer(skip_special_tokens=skip_special_tokens)
    for token_id in token_ids:
        yield detokenizer.push((token_id,))
    yield detokenizer.finish()


def table_of(pieces: list[bytes]) -> TokenBytes:
    """A table whose ids are the given byte strings, for splits no vocabulary has."""
    characters = {byte: character for character, byte in byte_level_alphabet().items()}
    return TokenBytes({"".join(characters[b] for b in piece): i for i, piece in enumerate(pieces)}, ())


def test_the_alphabet_is_the_library_s() -> None:
    alphabet = byte_level_alphabet()
    assert set(alphabet) == set(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    assert sorted(alphabet.values()) == list(range(256))
    pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    text = "a \n\x00\x7f ¡­ÿ€👩"
    assert spelled_bytes(pre_tokenizer.pre_tokenize_str(text)[0][0]) == text.encode()


def test_a_token_outside_the_alphabet_stands_for_its_own_utf_8() -> None:
    assert spelled_bytes("<｜User｜>") == "<｜User｜>".encode()
    assert spelled_bytes("<think>") == b"<think>"


@given(st.lists(st.integers(0, VOCAB - 1), max_size=60), st.booleans())
def test_deltas_join_to_what_the_library_decodes_at_once(token_ids: list[int], skip: bool) -> None:
    expected = LIBRARY.decode(token_ids, skip_special_tokens=skip)
    assert "".join(deltas(token_ids, skip_special_tokens=skip)) == expected
    assert small_tokenizer().decode(token_ids, skip_special_tokens=skip) == expected


@given(st.text(max_size=30), st.lists(st.integers(0, 120), max_size=40))
def test_valid_text_survives_any_split_of_its_bytes(text: str, cuts: list[int]) -> None:
    data = text.encode()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in pairwise(edges)]
    vocabulary = list(dict.fromkeys(pieces))
    detokenizer, seen = Detokenizer(table_of(vocabulary)), ""
    for piece in pieces:
        seen += detokenizer.push((vocabulary.index(piece),))
        assert text.startswith(seen)
    assert (seen, detokenizer.finish()) == (text, "")


@given(st.binary(max_size=40), st.integers(1, 5))
def test_any_bytes_give_what_decoding_at_once_gives(data: bytes, step: int) -> None:
    detokenizer = small_tokenizer().detokenizer()
    tokens = bytes_as_tokens(data)
    text = "".join(detokenizer.push(tokens[i : i + step]) for i in range(0, len(tokens), step))
    assert text + detokenizer.finish() == data.decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["👨‍👩‍👧‍👦 ď 你好", "ÿ\x80€", "\U0010ffff"])
def test_b1_no_delta_holds_half_a_character(text: str) -> None:
    parts = list(deltas(bytes_as_tokens(text.encode())))
    assert "\ufffd" not in "".join(parts)
    assert "".join(parts) == text


def test_b1_a_token_that_is_half_an_emoji_waits_for_the_rest() -> None:
    tokenizer = small_tokenizer()
    half = next(i for i, piece in enumerate(tokenizer.token_bytes.pieces) if piece == SPLIT_EMOJI)
    assert list(deltas([half, *bytes_as_tokens(b"\x91\xa9")])) == [" ", "", "👩", ""]


@pytest.mark.parametrize("ending", ["end token", "length", "grammar"])
def test_b3_a_dangling_tail_gives_one_replacement_character_however_it_ends(ending: str) -> None:
    dangling = bytes_as_tokens(b"a" + "👩".encode()[:3])
    tokens = [*dangling, END] if ending == "end token" else dangling
    parts = list(deltas(tokens))
    assert parts[-1] == "\ufffd"
    assert "".join(parts) == "a\ufffd" == small_tokenizer().decode(tokens)


def test_b3_a_stop_string_before_the_tail_drops_the_tail_with_the_rest() -> None:
    detokenizer, matcher = small_tokenizer().detokenizer(), StopMatcher(["b"])
    text = "".join(matcher.push(detokenizer.push((t,))) for t in bytes_as_tokens(b"ab\xf0"))
    text += matcher.push(detokenizer.finish()) + matcher.finish()
    assert (text, matcher.matched) == ("a", "b")


def test_special_tokens_give_text_only_when_asked() -> None:
    assert "".join(deltas([BEGIN, *bytes_as_tokens(b"a"), END])) == "a"
    shown = "".join(deltas([*bytes_as_tokens(b"a\xf0"), END], skip_special_tokens=False))
    assert shown == "a\ufffd<｜end▁of▁sentence｜>"
    assert "".join(deltas([4])) == "<think>"  # an added token that is part of the answer


def test_an_id_beyond_the_vocabulary_gives_no_text_and_a_negative_one_is_an_error() -> None:
    detokenizer = small_tokenizer().detokenizer()
    assert detokenizer.push([VOCAB, VOCAB + 5000]) == ""
    with pytest.raises(ValueError, match="-1"):
        detokenizer.push([-1])


def test_a_finished_detokenizer_is_as_new() -> None:
    detokenizer = small_tokenizer().detokenizer()
    detokenizer.push(bytes_as_tokens(b"\xf0"))
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""
    assert detokenizer.push(bytes_as_tokens(b"a")) == "a"


def test_work_is_linear_in_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    """No byte is decoded more often than its character has bytes, and at most three wait."""
    given: list[int] = []
    kept: list[int] = []

    def counted(data: bytes, errors: str, final: bool) -> tuple[str, int]:
        text, used = codecs.utf_8_decode(data, errors, final)
        given.append(len(data))
        kept.append(len(data) - used)
        return text, used

    monkeypatch.setattr(detokenizer_module, "utf_8_decode", counted)
    data = "a👩ď".encode() * 2000
    detokenizer = small_tokenizer().detokenizer()
    for token in bytes_as_tokens(data):
        detokenizer.push((token,))
    assert 0 < sum(given) <= (1 + 2 + 3 + 4 + 1 + 2) * 2000
    assert max(kept) == 3
