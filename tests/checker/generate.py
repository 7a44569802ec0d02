"""A script from a seed. Sizes are small on purpose: pools, queues and windows that are nearly always full."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Literal, TypeVar

import msgspec

from stepahead.engine.config import RequestLimits

from .oracle import told
from .script import MAX_POSITIONS, Client, DeviceScript, Event, Knobs, Model, Script

T = TypeVar("T")


class _Chances:
    """A random source with the words the rules below are written in."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def one_in(self, count: int) -> bool:
        return self.random.randrange(count) == 0

    def of(self, *values: T) -> T:
        return self.random.choice(values)

    def between(self, least: int, most: int) -> int:
        return self.random.randint(least, max(least, most))

    def seconds(self, most: float) -> float:
        """Often zero, so that things happen at once."""
        return 0.0 if self.one_in(4) else round(self.random.uniform(0.0, most), 6)

    def tokens(self, count: int, vocab: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(2, vocab) for _ in range(count))


def generate(seed: int) -> Script:
    """The workload of a seed: a pure function of it."""
    chances = _Chances(seed)
    model = _model(chances)
    knobs = _knobs(chances, model)
    crowded = chances.one_in(3)
    if crowded:
        knobs = _crowded_knobs(chances, model, knobs)
    prefixes = [chances.tokens(knobs.max_context, model.vocab_size) for _ in range(chances.between(1, 3))]
    duration = chances.of(0.0, 0.02, 0.1)
    count = chances.of(3, 4, 6) if crowded else chances.of(1, 2, 3, 4, 6, 9)
    clients: list[Client] = []
    for _ in range(count):
        client = _client(chances, model, knobs, prefixes, duration)
        if crowded and not chances.one_in(3):
            client = _growing(chances, client)
        clients.append(_continuing(chances, model, knobs, client, clients))
    return Script(
        model=model,
        knobs=knobs,
        device=_device(chances, adaptive=knobs.verify == "adaptive"),
        clients=tuple(clients),
        events=tuple(_event(chances, duration) for _ in range(chances.of(0, 0, 1, 2, 4))),
        close_at=chances.seconds(2 * duration + 0.05) if chances.one_in(25) else None,
    )


def _model(chances: _Chances) -> Model:
    drafts = chances.of(0, 0, 1, 2, 3, 5)
    return Model(
        block_tokens=chances.of(2, 4, 4, 8),
        window=chances.of(1, 3, 5, 9),
        backtracking=max(chances.of(2, 6), drafts + 1),
        hit_margin=chances.of(1, 1, 1, 4),
        draft_tokens=drafts,
        draft_accuracy=chances.of(0.0, 0.5, 0.8, 1.0),
        vocab_size=chances.of(32, 128),
        nonfinite_rate=0.01 if chances.one_in(12) else 0.0,
    )


def _knobs(chances: _Chances, model: Model) -> Knobs:
    width = model.draft_tokens + 1
    sequences = chances.of(1, 2, 3, 4, 7)
    context = chances.of(16, 25, 40, 64)
    whole = -(-(context + 2 * width) // model.block_tokens)
    least = -(-(2 + 2 * width) // model.block_tokens)
    blocks = chances.of(
        chances.between(least, whole),
        whole,
        whole + chances.between(0, whole // 2),
        whole + chances.between(0, whole),
        sequences * whole,
    )
    extra: dict[str, Any] = {}
    if chances.one_in(5):
        extra["queue_capacity"] = chances.between(1, 4)
        extra["queue_policy"] = chances.of("wait", "wait", "reject")
    if chances.one_in(10):
        extra["slow_reader"], extra["unread_tokens"] = "abort", chances.of(1, 4, 16)
    if chances.one_in(10):
        extra["mailbox_capacity"] = chances.of(16, 64)
    return Knobs(
        overlap=not chances.one_in(5),
        max_sequences=sequences,
        max_step_rows=sequences * width + chances.of(0, 1, 5, 16, 64),
        prefill_chunk=chances.of(1 if chances.one_in(4) else 5, 3, 8, 16, 64),
        max_context=context,
        kv_blocks=1 + blocks,
        prefix_cache=not chances.one_in(6),
        snapshot_slots=chances.of(None, 0, 1, 2, 8),
        **_speculation(chances, model),
        max_bypass=chances.of(0, 1, 32),
        **extra,
    )


def _speculation(chances: _Chances, model: Model) -> dict[str, Any]:
    """Mostly adaptive; sometimes fewer drafts than the model makes. By rejection all are verified: then the
    oracle knows the windows."""
    if model.draft_tokens == 0 or chances.one_in(4):
        return {}
    if chances.one_in(4):
        return {"acceptance": "rejection"}
    drafts = chances.of(None, None, None, chances.between(0, model.draft_tokens))
    most = max(model.draft_tokens if drafts is None else drafts, 1)
    verify = chances.of("adaptive", "adaptive", "adaptive", chances.between(1, most))
    return {"verify": verify, "draft_tokens": drafts}


def _crowded_knobs(chances: _Chances, model: Model, knobs: Knobs) -> Knobs:
    """Many sequences over a pool that holds little more than one of them: growth must preempt."""
    width = model.draft_tokens + 1
    sequences = chances.of(3, 4, 7)
    whole = -(-(knobs.max_context + 2 * width) // model.block_tokens)
    return msgspec.structs.replace(
        knobs,
        max_sequences=sequences,
        max_step_rows=max(knobs.max_step_rows, sequences * width),
        kv_blocks=1 + whole + chances.between(0, 4),
    )


def _growing(chances: _Chances, client: Client) -> Client:
    """Easily admitted, and then in need of ever more blocks."""
    return msgspec.structs.replace(
        client, prompt=client.prompt[: chances.between(1, 10)], max_tokens=None, ignore_eos=True, stop=()
    )


def _device(chances: _Chances, *, adaptive: bool) -> DeviceScript:
    fault_at, fault = "", "error"
    if chances.one_in(12):
        fault_at = f"{chances.of('forward', 'sample')}:{chances.of(0, 1, 2, 5, 12)}"
        fault = chances.of("error", "error", "hang")
    kind: Literal["error", "hang"] = "hang" if fault == "hang" else "error"
    forward, sample = chances.of((1e-3, 1e-4), (1e-3, 0.0), (0.0, 1e-3), (0.0, 0.0), (1e-4, 5e-3))
    return DeviceScript(
        forward=forward,
        sample=sample,
        row=chances.of(0.0, 1e-5, 1e-4, 1e-3),
        budgets=chances.of(0, chances.between(1, 1000)) if adaptive else 0,
        jitter=chances.of(0.0, 0.0, 3.0),
        seed=chances.between(0, 1000),
        fault_at=fault_at,
        fault=kind,
    )


def _client(
    chances: _Chances, model: Model, knobs: Knobs, prefixes: Sequence[tuple[int, ...]], duration: float
) -> Client:
    return Client(
        prompt=_prompt(chances, model, knobs, prefixes),
        at=chances.seconds(duration),
        priority=chances.of(0, 0, 0, 1, -1),
        deadline=chances.seconds(duration + 0.02) if chances.one_in(10) else None,
        salt=chances.of("", "", "", "tenant"),
        session=chances.of("", "", "a", "b"),
        retention=chances.of("chat", "chat", "agent"),
        pause=chances.of(1e-3, 0.02, 1.0) if chances.one_in(8) else 0.0,
        **_sampling(chances, model, knobs),
        **_leaving(chances),
    )


def _continuing(
    chances: _Chances, model: Model, knobs: Knobs, client: Client, earlier: Sequence[Client]
) -> Client:
    """Some go on with an earlier conversation: its prompt, what was answered, and something new."""
    if not earlier or not chances.one_in(3):
        return client
    before = chances.of(*earlier)
    answer = told(model, before, _GENEROUS)[0].sampled
    kept = chances.of(len(answer), chances.between(0, len(answer)))
    prompt = (before.prompt + answer[:kept] + client.prompt[: chances.between(0, 8)])[: knobs.max_context - 1]
    at = before.at + chances.of(0.01, 0.05, 0.2)
    return msgspec.structs.replace(client, prompt=prompt, salt=before.salt, session=before.session, at=at)


_GENEROUS = RequestLimits(
    vocab_size=1024,
    context=MAX_POSITIONS // 2,
    block_tokens=1,
    usable_blocks=MAX_POSITIONS,
    lookahead=0,
    eos_token_ids=(1,),
    max_logprobs=20,
    max_stop_ids=16,
    draft_tokens=32,
    model_draft_tokens=32,
)
"""Limits under which every client of a script may ask: its answer may be longer than the engine will give."""


def _prompt(
    chances: _Chances, model: Model, knobs: Knobs, prefixes: Sequence[tuple[int, ...]]
) -> tuple[int, ...]:
    """Long parts in common, ends of their own; often a whole number of blocks."""
    length = chances.of(
        chances.between(1, knobs.max_context - 1),
        chances.between(1, knobs.max_context // 2),
        chances.between(1, 6),
        chances.between(1, knobs.max_context // model.block_tokens - 1) * model.block_tokens,
    )
    common = chances.of(length, length, chances.between(0, length))
    return chances.of(*prefixes)[:common] + chances.tokens(length - common, model.vocab_size)


def _sampling(chances: _Chances, model: Model, knobs: Knobs) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "max_tokens": chances.of(None, None, 0, 1, 2, 5, 10, 30, knobs.max_context),
        "seed": chances.between(0, 3),
        "n": chances.of(2, 3, 5) if chances.one_in(6) else 1,
        "ignore_eos": chances.one_in(2),
        "detokenize": not chances.one_in(4),
    }
    if model.draft_tokens and chances.one_in(4):
        fields["draft_tokens"] = chances.between(0, model.draft_tokens)
    if model.draft_tokens and chances.one_in(8):
        fields["latency_target"] = chances.of(1e-5, 1e-3, 1.0)
    if chances.one_in(3):
        fields["temperature"] = chances.of(1.0, 0.5, 2.0)
        fields["top_k"], fields["top_p"] = chances.of(0, 0, 3), chances.of(1.0, 1.0, 0.7)
        fields["min_p"] = chances.of(0.0, 0.0, 0.3)
    if chances.one_in(5):
        fields["logprobs"] = chances.of(0, 1, 3)
        fields["logprobs_of"] = chances.of("model", "model", "processed")
    if chances.one_in(4):
        fields["stop_token_ids"] = chances.tokens(chances.between(1, 5), model.vocab_size)
        fields["include_stop"] = chances.one_in(2)
        limit = fields["max_tokens"]
        fields["min_tokens"] = chances.between(0, 5 if limit is None else min(limit, 5))
    if chances.one_in(5) and fields["detokenize"]:
        letters = "".join(chr(code) for code in range(32, 123))
        fields["stop"] = tuple(chances.of(*letters) for _ in range(chances.between(1, 8)))
    if chances.one_in(6):
        fields["prompt_logprobs"] = chances.of(0, 1, 3)
    return fields | _edits(chances, model)


def _edits(chances: _Chances, model: Model) -> dict[str, Any]:
    """Few allowed ids make loops, so that penalties and bad words have something to do."""
    if not chances.one_in(3):
        return {}
    vocab = model.vocab_size
    few = tuple(dict.fromkeys(chances.tokens(chances.between(6, 9), vocab)))
    fields: dict[str, Any] = {}
    if chances.one_in(2):
        fields["allowed_token_ids"] = few
    if chances.one_in(2):
        fields["presence_penalty"], fields["frequency_penalty"] = chances.of(
            (2.0, 0.0), (0.0, 0.7), (-1.5, 1.0)
        )
    if chances.one_in(2):
        fields["repetition_penalty"] = chances.of(1.3, 3.0, 0.8)
    if chances.one_in(2):
        fields["logit_bias"] = {chances.of(*few): 50.0, chances.of(*few): chances.of(-100.0, 2.5)}
    if chances.one_in(3):
        fields["banned_token_ids"] = (few[0],)
    if chances.one_in(2):
        pair = (chances.of(*few), few[1])
        fields["bad_words"] = (pair, (*pair, few[0]), (few[0],))[: chances.between(1, 3)]
    return fields


def _leaving(chances: _Chances) -> dict[str, Any]:
    if not chances.one_in(3):
        return {}
    return {
        "leave": chances.of("break", "drop", "cancel", "timeout", "abort", "never_start"),
        "after_deltas": chances.of(0, 1, 2, 5),
        "after_seconds": chances.seconds(0.03),
    }


def _event(chances: _Chances, duration: float) -> Event:
    kind: Literal["pause", "reset", "abort_all", "drain", "stats"] = chances.of(
        "pause", "pause", "reset", "reset", "stats", "abort_all", "drain" if chances.one_in(5) else "pause"
    )
    return Event(at=chances.seconds(2 * duration + 0.02), kind=kind, seconds=chances.seconds(0.05))
