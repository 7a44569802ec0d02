"""Whatever a caller passes as a prompt becomes the same tokens, or an error that names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepahead.engine.errors import InvalidParameterError, PromptTooLongError, TokenOutOfVocabularyError
from stepahead.engine.prompts import LONG, is_long, prompt_tokens
from stepahead.engine.text.chat import chat_tokens
from stepahead.engine.text.tokenizer import Tokenizer, UnknownTokenError

from .text_tokenizer import definition, small_tokenizer


def tokens(prompt: Any, context: int = 10**6) -> list[int]:
    array = prompt_tokens(prompt, small_tokenizer(), 300, context)
    assert array.dtype == np.int32
    return [int(token) for token in array]


@pytest.mark.parametrize(
    "prompt",
    [
        [5, 6, 7],
        (5, 6, 7),
        range(5, 8),
        np.array([5, 6, 7]),
        np.array([5, 6, 7], dtype=np.uint16),
        [np.int64(5), np.int8(6), 7],
    ],
    ids=repr,
)
def test_ids_of_every_form(prompt: Any) -> None:
    assert tokens(prompt) == [5, 6, 7]


def test_text_begins_with_the_beginning() -> None:
    tokenizer = small_tokenizer()
    assert tokens("ab") == [tokenizer.begin_id, *tokenizer.encode("ab", literal=True)]


def test_an_id_out_of_range_far_inside_a_long_prompt_is_found() -> None:
    prompt = [7] * 40_000
    prompt[33_333] = 300
    with pytest.raises(TokenOutOfVocabularyError) as caught:
        tokens(prompt)
    assert (caught.value.position, caught.value.token) == (33_333, 300)


@pytest.mark.parametrize("prompt", [[7] * 11, "x" * 11])
def test_a_prompt_that_is_too_long_is_refused_before_it_is_converted(prompt: Any) -> None:
    with pytest.raises(PromptTooLongError):
        tokens(prompt, context=10)


@pytest.mark.parametrize("prompt", [[1.0, 2.0], [True, False], ["a"], np.zeros((2, 2), int), {1, 2}, None])
def test_anything_else_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidParameterError, match="prompt"):
        tokens(prompt)


def test_what_is_long_is_prepared_elsewhere() -> None:
    assert not is_long("x" * LONG)
    assert is_long("x" * (LONG + 1))
    assert is_long(np.zeros(LONG + 1, int))
    assert is_long([{"role": "user", "content": "x" * LONG}, {"role": "user", "content": "x"}])
    assert not is_long([{"role": "user", "content": "x"}])
    assert not is_long([])


def chat_tokenizer() -> Tokenizer:
    """The small vocabulary with the roles of V4.1."""
    text = definition().replace('"<think>"', '"</think>"').replace('"<｜▁pad▁｜>"', '"<｜Assistant｜>"')
    return Tokenizer(text)


def test_a_conversation_is_rendered_as_the_format_says() -> None:
    tokenizer = chat_tokenizer()
    begin, end = tokenizer.begin_id, tokenizer.end_id
    user, assistant, answer = map(tokenizer.token_id, ("<｜User｜>", "<｜Assistant｜>", "</think>"))
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "user", "content": "<｜User｜>"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "so"},
    ]

    def literal(text: str) -> list[int]:
        return tokenizer.encode(text, literal=True)

    assert chat_tokens(tokenizer, messages) == [
        begin,
        user,
        *literal("hi"),
        *literal("\n\n<｜User｜>"),
        assistant,
        answer,
        *literal("yes"),
        end,
        user,
        *literal("so"),
        assistant,
        answer,
    ]  # fmt: skip


def test_a_vocabulary_without_a_role_is_named() -> None:
    with pytest.raises(UnknownTokenError, match="System"):
        chat_tokens(chat_tokenizer(), [{"role": "system", "content": "be kind"}])


@pytest.mark.parametrize(
    "message",
    [
        {"role": "tool", "content": "x"},
        {"role": "user"},
        {"role": "user", "content": None},
        {"role": "user", "content": "x", "name": "y"},
        {"role": "assistant", "content": "x", "tool_calls": []},
    ],
)
def test_what_only_the_recipe_renders_is_refused(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameterError, match="the recipe renders"):
        chat_tokens(chat_tokenizer(), [message])
