"""The tokenizer of the shipped model: byte-level BPE with the special tokens of V4.1 in front.

Ids 0, 1, 2 are fixed by the model family (begin, end, pad). The other specials follow, then the 256 bytes,
then the merges, so any byte string is encodable and no id is ever unknown. Digits are single tokens: with a
small vocabulary, multi-digit tokens make sums unlearnable and save almost nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from . import chat

IMAGE = "<｜deepseek_image｜>"
NOISE = "<｜dspark▁noise｜>"
# Rendered visibly inside an answer, so a decoder that hides special tokens must still print them.
VISIBLE = (chat.THINK, chat.END_THINK, chat.DSML)
SPECIAL = (
    chat.BOS, chat.EOS, chat.PAD, chat.SYSTEM, chat.USER, chat.ASSISTANT, chat.THINK, chat.END_THINK,
    chat.DSML, "<｜latest_reminder｜>", IMAGE, "<｜image｜>", NOISE,
    "<｜ref｜>", "<｜/ref｜>", "<｜box｜>", "<｜/box｜>", "<｜point｜>", "<｜/point｜>",
    "<｜polygon｜>", "<｜/polygon｜>",
    "<｜action｜>", "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>",
    "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>",
    "<｜place▁holder▁no▁0｜>", "<｜place▁holder▁no▁1｜>",
)  # fmt: skip
# Letters with one leading space or punctuation mark, single digits, punctuation runs, newlines, spaces.
_SPLIT = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def train(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Learn the merges from `texts`, in which special tokens may be spelled out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`."""
    value: dict[str, Any] = json.loads(tokenizer.to_str())
    for token in value["added_tokens"]:
        token["special"] = token["content"] not in VISIBLE
    (folder / "tokenizer.json").write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", "utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": True,
        "add_eos_token": False,
        "bos_token": chat.BOS,
        "eos_token": chat.EOS,
        "pad_token": chat.PAD,
        "model_max_length": 32768,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config, ensure_ascii=False, indent=2) + "\n", "utf-8"
    )
