"""The map from tokens to the n-gram memory's vocabulary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import stepahead.engine.nano
from stepahead.engine.model.v41.config import load_config
from stepahead.engine.text.compressed_vocabulary import compressed_token_ids, normalise
from stepahead.engine.text.tokenizer import Tokenizer

from .text_tokenizer import small_tokenizer

NANO = Path(stepahead.engine.nano.__file__).parent


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        (" Hello", "hello"),
        ("Ｈｅｌｌｏ", "hello"),
        ("É", "e"),
        ("e\u0301", "e"),
        ("\u0903", ""),  # a spacing mark: category M, not only Mn
        ("ΣΑΣ", "σασ"),  # no final sigma
        (" \t\r\n", " "),
        ("a \n b", "a b"),
        ("\u2003x\u2003", "x"),  # Unicode white space, after NFKC a plain space
        ("", ""),
    ],
)
def test_normalisation(text: str, folded: str) -> None:
    assert normalise(text) == folded


def test_ids_are_numbered_by_first_appearance_and_half_characters_stay_apart() -> None:
    ids = compressed_token_ids(small_tokenizer())
    byte = {value: int(ids[5 + value]) for value in range(256)}
    assert ids[0] == 0
    assert byte[ord("a")] == byte[ord("A")]
    assert byte[ord(" ")] == byte[ord("\n")] == byte[ord("\t")]
    assert len({byte[value] for value in range(0x80, 0x100)}) == 128  # no text: known by their spelling
    firsts = np.unique(ids, return_index=True)[1]
    assert list(ids[np.sort(firsts)]) == list(range(len(firsts)))


def test_the_shipped_vocabulary_has_the_size_its_configuration_declares() -> None:
    config = load_config(NANO)
    ids = compressed_token_ids(Tokenizer.from_file(NANO))
    assert len(ids) == config.vocab_size
    assert int(ids.max()) + 1 == config.engram_compressed_vocab_size
