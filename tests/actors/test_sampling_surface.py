"""Every sampling option through a whole engine, all of them at once in one batch, each exact by the oracle.

With drafts and without, coupled and by rejection, with and without overlap: a request's tokens and their
logprobs are what its own definition says, whoever runs beside it. The table must name every field of
`SamplingParams`, so a new option cannot be forgotten here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from stepahead import Completion, FinishReason, SamplingParams
from stepahead.engine.model.hashed import HashedModel, Solo, solo
from stepahead.engine.sampling.commit import STOP
from tests.actors.hashed_engine import as_request, open_hashed, prompt_of
from tests.unit.text_tokenizer import small_tokenizer

Check = Callable[[Completion, Solo], bool]
PLAIN, DRAFTING = HashedModel(vocab_size=128), HashedModel(vocab_size=128, draft_tokens=3)
LETTERS = tuple(range(40, 54))


def anything(done: Completion, truth: Solo) -> bool:
    return True


class Case(msgspec.Struct, frozen=True):
    """An option, alone or with what makes it visible, and a property of the answer beyond equality."""

    field: str
    fields: dict[str, Any]
    check: Check = anything


def text_of(tokens: tuple[int, ...]) -> str:
    pieces = small_tokenizer().token_bytes.visible_pieces
    return b"".join(pieces[token] for token in tokens).decode(errors="replace")


def without(*banned: int) -> Check:
    return lambda done, truth: not set(banned) & set(done.token_ids)


def is_cut_at_g(done: Completion, truth: Solo) -> bool:
    whole = text_of(truth.tokens)
    end = whole.find("g")
    return (end < 0) or (done.text == whole[:end] and done.finish_reason is FinishReason.STOP)


CASES = (
    Case("temperature", {"temperature": 0.0}),
    Case("temperature", {"temperature": 1.7}),
    Case("top_k", {"top_k": 2}),
    Case("top_p", {"top_p": 0.6}),
    Case("min_p", {"min_p": 0.2}),
    Case("top_k", {"top_k": 9, "top_p": 0.9, "min_p": 0.02, "temperature": 1.3}),
    Case("presence_penalty", {"presence_penalty": 1.5, "allowed_token_ids": LETTERS}),
    Case("frequency_penalty", {"frequency_penalty": 2.0, "allowed_token_ids": LETTERS}),
    Case("frequency_penalty", {"frequency_penalty": -1.0, "temperature": 0.0}),
    Case("repetition_penalty", {"repetition_penalty": 1.8, "temperature": 0.0}),
    Case("logit_bias", {"logit_bias": {60: 9.0, 61: -9.0, 62: 8.0}}, lambda d, t: 60 in d.token_ids),
    Case("allowed_token_ids", {"allowed_token_ids": LETTERS}, lambda d, t: set(d.token_ids) <= {*LETTERS}),
    Case("banned_token_ids", {"banned_token_ids": (41,), "allowed_token_ids": LETTERS[:4]}, without(41)),
    Case(
        "bad_words",
        {"bad_words": ((40, 41), (41, 40, 42)), "allowed_token_ids": LETTERS[:3], "temperature": 3.0},
        lambda d, t: (40, 41) not in pairwise(d.token_ids),
    ),
    Case("seed", {"seed": 2**64 - 1}),
    Case("n", {"n": 1}),
    Case("best_of", {"best_of": 1}),
    Case("max_tokens", {"max_tokens": 1}, lambda d, t: len(d.token_ids) == 1),
    Case("max_tokens", {"max_tokens": 0}, lambda d, t: d.token_ids == ()),
    Case("min_tokens", {"min_tokens": 9, "stop_token_ids": LETTERS[:8], "logit_bias": {41: 4.0}},
         lambda d, t: len(t.tokens) > 9),
    Case("ignore_eos", {"ignore_eos": True, "logit_bias": {1: 9.0}}, lambda d, t: 1 in d.token_ids),
    Case("stop_token_ids", {"stop_token_ids": LETTERS, "logit_bias": {45: 5.0}}, without(*LETTERS)),
    Case("include_stop", {"include_stop": True, "stop_token_ids": LETTERS, "logit_bias": {45: 6.0}},
         lambda d, t: d.token_ids[-1] in LETTERS),
    Case("stop", {"stop": ("g", "never")}, is_cut_at_g),
    Case("logprobs", {"logprobs": 0}),
    Case("logprobs", {"logprobs": 20}),
    Case("logprobs_of", {"logprobs_of": "processed", "top_k": 4, "temperature": 0.9}),
    Case("prompt_logprobs", {"prompt_logprobs": 2},
         lambda d, t: tuple(d.prompt_logprobs or ()) == t.prompt and len(t.prompt) > 0),
    Case("detokenize", {"detokenize": False}, lambda d, t: d.text == ""),
    Case("draft_tokens", {"draft_tokens": 0}, lambda d, t: d.usage.drafted_tokens == 0),
    Case("latency_target", {"latency_target": 0.01}),
)  # fmt: skip


def params_of(number: int, case: Case) -> SamplingParams:
    return SamplingParams(**{"seed": number, "max_tokens": 24, "logprobs": 3, **case.fields})


def test_the_table_names_every_option() -> None:
    assert {case.field for case in CASES} == set(SamplingParams.__struct_fields__)
    for case in CASES:
        assert case.field in case.fields


def shown(truth: Solo, params: SamplingParams) -> tuple[int, ...]:
    hidden = truth.finish == STOP and not params.include_stop
    return truth.tokens[:-1] if hidden else truth.tokens


def check(case: Case, params: SamplingParams, done: Completion, truth: Solo) -> None:
    told = done.token_ids
    expected = shown(truth, params)
    assert told == (expected[: len(told)] if params.stop else expected), case
    assert case.check(done, truth), case
    entries = done.logprobs or ()
    assert [entry.token_id for entry in entries] == list(told), "one entry per token"
    assert [entry.logprob for entry in entries] == pytest.approx(truth.logprobs[: len(told)], abs=1e-4)
    for entry, own in zip(entries, truth.top, strict=False):
        assert len(entry.top) == params.logprobs
        assert [token for token, _ in entry.top] == [token for token, _ in own]
        values = [value for _, value in entry.top]
        assert values == sorted(values, reverse=True)
        if entry.top and entry.logprob > values[-1]:
            assert entry.token_id in [token for token, _ in entry.top], "the chosen one is among the best"
    if (
        params.temperature == 0
        and entries
        and params.logprobs_of == "model"
        and not case.fields.keys() & EDITS
    ):
        assert all(entry.top[0][0] == entry.token_id for entry in entries)


EDITS = {"frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias"}


@pytest.mark.parametrize("overlap", [True, False], ids=["overlap", "in turns"])
@pytest.mark.parametrize(
    ("model", "knobs"),
    [
        (PLAIN, {}),
        (DRAFTING, {"verify": "all"}),
        (DRAFTING, {"verify": "adaptive"}),
        (DRAFTING, {"verify": "all", "acceptance": "rejection"}),
    ],
    ids=["no drafts", "drafts", "adaptive", "rejection"],
)
async def test_each_option_is_exact_beside_all_others(
    model: HashedModel, knobs: dict[str, Any], overlap: bool
) -> None:
    prompts = [prompt_of(6 + number % 9, number) for number in range(len(CASES))]
    rejection = "acceptance" in knobs
    async with open_hashed(
        model, tokenizer=small_tokenizer(), overlap=overlap, max_step_rows=160, max_sequences=32, **knobs
    ) as engine:
        asked = [params_of(number, case) for number, case in enumerate(CASES)]
        done = await asyncio.gather(*(engine.generate(p, a) for p, a in zip(prompts, asked, strict=True)))
        assert (engine.stats().accepted_tokens > 0) == (model is DRAFTING)
    for case, params, completion, prompt in zip(CASES, asked, done, prompts, strict=True):
        truth = solo(model, as_request(prompt, params, model), rejection=rejection)
        check(case, params, completion, truth)
