"""The shipped model is whole and small, speaks, closes what it opens, and its drafts are worth their step."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import stepahead.engine.nano
from stepahead.engine.model.checkpoint.layout import tensor_specs
from stepahead.engine.model.checkpoint.reader import CheckpointReader
from stepahead.engine.model.v41.config import ModelConfig, load_config
from stepahead.engine.model.v41.numerics import exact
from stepahead.engine.model.v41.token_map import engram_token_map
from stepahead.engine.text.chat import chat_tokens
from stepahead.engine.text.tokenizer import Tokenizer
from tests.fidelity.fast_path import FastModel, Session

NANO = Path(stepahead.engine.nano.__file__).parent
MEGABYTES = 25e6  # what the repository gives this model
LONGEST = 64  # tokens of a continuation here

PLAIN = ("Once upon a time", '{"name": "Anna", "age":', "One day, a little fox named Rusty")
CHATS = ("Tell me a story about a rabbit.", "What is 7 plus 5?", "Count from 3 to 12.")


@dataclass(frozen=True)
class Continuation:
    """What the model says after a prompt, greedily; `ended` if it said so itself."""

    prompt: list[int]
    answer: list[int]
    ended: bool


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return load_config(NANO)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(NANO)


@pytest.fixture(scope="module")
def reader() -> CheckpointReader:
    return CheckpointReader(NANO)


@pytest.fixture(scope="module")
def model(config: ModelConfig, tokenizer: Tokenizer, reader: CheckpointReader) -> FastModel:
    token_map = engram_token_map(config, tokenizer.library).tolist()
    return FastModel(
        config, reader, exact(torch.float32), token_map=token_map, blocks=16, slots=8, max_rows=256
    )


@pytest.fixture(scope="module")
def continuations(model: FastModel, tokenizer: Tokenizer) -> dict[str, Continuation]:
    """All prompts continued side by side, a row each and step."""
    model.reset()
    prompts = {text: tokenizer.encode(text) for text in PLAIN}
    prompts |= {text: chat_tokens(tokenizer, [{"role": "user", "content": text}]) for text in CHATS}
    sessions = {text: model.session() for text in prompts}
    answers: dict[str, list[int]] = {text: [] for text in prompts}
    ended: set[str] = set()
    feeds = dict(prompts)
    while feeds:
        fed = model.step([(sessions[text], ids) for text, ids in feeds.items()])
        chosen = {text: int(f.logits[-1].argmax()) for text, f in zip(feeds, fed, strict=True)}
        ended |= {text for text, token in chosen.items() if token == model.config.eos_token_id}
        for text in chosen.keys() - ended:
            answers[text].append(chosen[text])
        feeds = {text: [chosen[text]] for text in chosen.keys() - ended if len(answers[text]) < LONGEST}
    return {text: Continuation(ids, answers[text], text in ended) for text, ids in prompts.items()}


def test_the_checkpoint_is_whole_and_small(config: ModelConfig, reader: CheckpointReader) -> None:
    reader.verify(tensor_specs(config))
    assert len(list(NANO.glob("*.safetensors"))) > 1  # it is sharded, as large ones are
    assert sum(path.stat().st_size for path in NANO.iterdir() if path.is_file()) < MEGABYTES


def test_a_story_begins_as_it_did_when_the_weights_were_made(
    continuations: dict[str, Continuation], tokenizer: Tokenizer
) -> None:
    story = tokenizer.decode(continuations["Once upon a time"].answer)
    assert story.startswith(
        ", there lived a shy boy named Felix in a small village by the sea. Felix had a big basket of cheese"
    )


def test_an_opened_object_is_closed(continuations: dict[str, Continuation], tokenizer: Tokenizer) -> None:
    opening = '{"name": "Anna", "age":'
    continuation = continuations[opening]
    assert continuation.ended
    whole = json.loads(opening + tokenizer.decode(continuation.answer))
    assert whole["name"] == "Anna"
    assert isinstance(whole["age"], int)


@pytest.mark.parametrize(
    ("question", "beginning"), [("What is 7 plus 5?", "The answer is "), ("Count from 3 to 12.", "3, 4, 5")]
)
def test_a_rendered_chat_is_answered_and_ended(
    continuations: dict[str, Continuation], tokenizer: Tokenizer, question: str, beginning: str
) -> None:
    continuation = continuations[question]
    assert continuation.ended
    answer = tokenizer.decode(continuation.answer, skip_special_tokens=False)
    assert answer.startswith(beginning)
    assert "<｜" not in answer


def test_two_of_five_drafts_are_accepted(model: FastModel, continuations: dict[str, Continuation]) -> None:
    """Greedy text does not depend on drafts, so a speculative loop is walked along the finished text."""
    model.reset()
    steps = accepted = 0
    for continuation in continuations.values():
        confirmed = _confirmed_drafts(model.session(), continuation)
        steps, accepted = steps + len(confirmed), accepted + sum(confirmed)
    assert steps > 15
    assert accepted / steps >= 2.0


def _confirmed_drafts(session: Session, continuation: Continuation) -> list[int]:
    """How many drafts each step of a speculative loop confirms, while a whole block lies within the text."""
    block = session.model.config.dspark_block_size
    text = continuation.prompt + continuation.answer
    confirmed: list[int] = []
    newest = len(continuation.prompt)  # place of the token that is chosen but not yet processed
    while newest + block < len(text):
        session.feed(text[session.length : newest])
        drafted = session.draft(text[newest]).tokens
        truth = text[newest + 1 : newest + 1 + block]
        same = [a == b for a, b in zip(drafted, truth, strict=True)]
        confirmed.append(same.index(False) if False in same else block)
        newest += confirmed[-1] + 1
    return confirmed
