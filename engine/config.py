"""Every knob of the engine, each with its default, its bounds and its reason; and the table of edge values.

Nothing else in the engine reads the environment or has a tunable constant. A knob outside its bounds raises
`ConfigError` where the config is built, not where it is used. Rejected: environment flags, which embedders
cannot set per engine and cannot discover.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from .errors import (
    ConfigError,
    EmptyPromptError,
    InvalidParameterError,
    InvalidRequestError,
    PromptNeverFitsError,
    PromptTooLongError,
    TokenOutOfVocabularyError,
)
from .types import SamplingParams, TokenEdits

Few = Annotated[int, Meta(ge=0, le=1024)]
Count = Annotated[int, Meta(ge=1, le=65536)]
Many = Annotated[int, Meta(ge=1, le=2**24)]
Seconds = Annotated[float, Meta(gt=0.0, le=3600.0)]
Share = Annotated[float, Meta(gt=0.0, le=1.0)]


MOST_DRAFTS = 32
"""Of a sequence in a step (model_spec 3: a draft block is at most so long)."""


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How one engine runs. `None` means: decided when the engine opens, from the model and the device."""

    overlap: bool = True
    """Plan step n+1 while the device runs step n. Off: an ablation, same tokens, slower."""
    max_sequences: Count = 256
    """Sequences that hold a slot, and with it a window state on the device, at a time."""
    max_step_rows: Count = 2048
    """Token budget of a step: decode rows first, prompt chunks in the rest. At least max_sequences * K."""
    prefill_chunk: Count = 512
    """Most rows of one prompt in one step. Cuts fall on its multiples, so they do not depend on load."""
    max_context: Annotated[int, Meta(ge=2, le=2**24)] | None = None
    """Prompt plus output tokens of a sequence. None: the model's limit."""
    kv_blocks: Annotated[int, Meta(ge=2, le=2**24)] | None = None
    """Cache blocks, the scratch block included. None: what fits in memory_fraction."""
    memory_fraction: Share = 0.9
    """Share of the device's free memory that the caches may take."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """What the model computes and caches in. None: float32 on a CPU, bfloat16 on a GPU."""
    rounding: Literal["none", "published"] = "none"
    """Published: activations and cache entries are rounded to FP8 and FP4 wherever the published engine does,
    in bfloat16; the level at which outputs of real checkpoints are compared with it."""
    weights: Literal["expanded", "stored"] | None = None
    """Matrices that a checkpoint stores in FP8 or FP4: expanded when the model opens, or kept as they are and
    expanded wherever one is used; the same values. None: stored where kernels do that in registers and the
    expanded ones would take more than half of the device's free memory."""
    prefix_cache: bool = True
    """Keep the blocks of finished prefixes and reuse them."""
    snapshot_slots: Annotated[int, Meta(ge=0, le=65536)] | None = None
    """Window states kept so that a prefix can be resumed. None: as many as sequences."""
    draft_tokens: Annotated[int, Meta(ge=0, le=MOST_DRAFTS)] | None = None
    """Most drafts per sequence and step. None: the model's own draft block; 0: no speculation."""
    verify: Literal["adaptive", "all"] | Annotated[int, Meta(ge=1, le=MOST_DRAFTS)] = "adaptive"
    """Drafts a step verifies: those that pay by their confidence and the step's cost, all, or so many."""
    cost_folder: str | None = "user"
    """Where measured step costs are kept between openings. "user": ~/.cache/stepahead; None: nowhere."""
    acceptance: Literal["coupled", "rejection"] = "coupled"
    """How drafts of random draws are verified. Coupled: no text depends on drafts. Rejection: a few more are
    accepted, and a text depends on where drafts were; what they were drawn from is kept, 4 bytes per token of
    the vocabulary, draft and sequence. Greedy texts are the same in both."""
    graph_sequences: Annotated[int, Meta(ge=0, le=65536)] | None = None
    """Sequences of the largest decode step replayed as a graph, where a device can. None: max_sequences."""
    queue_capacity: Many = 4096
    """Sequences that may wait for admission."""
    queue_policy: Literal["wait", "reject"] = "wait"
    """A full queue makes the caller wait, or raises QueueFullError with an estimate."""
    max_bypass: Annotated[int, Meta(ge=0, le=65536)] = 32
    """Times a head of the queue that does not fit may be overtaken before it blocks all behind it."""
    slow_reader: Literal["coalesce", "abort"] = "coalesce"
    """A reader that falls behind gets larger deltas, or loses its stream at unread_tokens."""
    unread_tokens: Many = 8192
    """Unread tokens at which the policy `abort` closes a stream."""
    stall_seconds: Seconds = 60.0
    """A step that takes longer means that the device is gone."""
    mailbox_capacity: Annotated[int, Meta(ge=16, le=2**24)] = 8192
    """Messages an actor may have waiting. Callers beyond three quarters of it wait; the rest is for steps."""
    max_logprobs: Few = 20
    """Most alternatives per token that a request may ask for."""
    max_stop_ids: Count = 16
    """Width of the table of end ids, end-of-text included."""
    max_listed_ids: Count = 4096
    """Most ids in each of a request's logit_bias, banned ids, allowed ids, and bad words together."""
    trace_steps: Annotated[int, Meta(ge=0, le=65536)] = 2048
    """Steps that the tracer remembers (some 10 KB each), so that the past can be dumped. 0: no tracing."""
    stall_folder: str | None = None
    """Where the trace of a stalled engine is left. None: the system's folder for temporary files."""
    cpu_backing: Literal["thread", "process"] = "thread"
    """Where a CPU device computes: nothing spawned, or a child process that hides all host work."""

    def __post_init__(self) -> None:
        if isinstance(self.verify, int) and not 1 <= self.verify <= MOST_DRAFTS:
            raise ConfigError("verify", self.verify, f">= 1 and <= {MOST_DRAFTS}, 'adaptive' or 'all'")
        if isinstance(self.verify, str) and self.verify not in ("adaptive", "all"):
            raise ConfigError("verify", self.verify, f">= 1 and <= {MOST_DRAFTS}, 'adaptive' or 'all'")
        if self.rounding == "published" and self.dtype == "float32":
            raise ConfigError("rounding", self.rounding, "'none' with dtype='float32': it rounds bfloat16")
        for name, (meta, words, optional) in _knobs().items():
            value = getattr(self, name)
            if value is None and optional:
                continue
            if words and value not in words:
                raise ConfigError(name, value, f"one of {', '.join(map(repr, words))}")
            if meta is not None and not _within(value, meta):
                raise ConfigError(name, value, _bounds(meta))


def _within(value: float, meta: Meta) -> bool:
    above = (meta.ge is None or value >= meta.ge) and (meta.gt is None or value > meta.gt)
    return above and (meta.le is None or value <= meta.le)


def _bounds(meta: Meta) -> str:
    low = f">= {meta.ge}" if meta.ge is not None else f"> {meta.gt}"
    return f"{low} and <= {meta.le}"


@cache
def _knobs() -> dict[str, tuple[Meta | None, tuple[str, ...], bool]]:
    """Field name -> (bounds of a number, allowed words of a word, whether None is allowed)."""
    table: dict[str, tuple[Meta | None, tuple[str, ...], bool]] = {}
    for name, hint in typing.get_type_hints(EngineConfig, include_extras=True).items():
        optional = type(None) in typing.get_args(hint)
        kind = typing.get_args(hint)[0] if optional else hint
        meta = kind.__metadata__[0] if typing.get_origin(kind) is Annotated else None
        words = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
        table[name] = (meta, words, optional)
    return table


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What an open engine can serve: the facts `validation.validate` compares a request with."""

    vocab_size: int
    context: int  # most prompt plus output tokens of a sequence
    block_tokens: int
    usable_blocks: int  # blocks one sequence alone could own (the scratch block is not among them)
    lookahead: int  # 2K: positions past the committed ones that a table must cover
    eos_token_ids: tuple[int, ...]
    max_logprobs: int
    max_stop_ids: int
    max_listed_ids: int = 4096
    draft_tokens: int = 0  # drafts a sequence of this engine can have in a step
    model_draft_tokens: int = 0  # what the model could give


class EdgeValue(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the edge table: an example, and either the error it raises or what it means."""

    case: str
    prompt: Callable[[RequestLimits], list[int]]
    params: Callable[[RequestLimits], SamplingParams]
    outcome: type[InvalidRequestError] | dict[str, Any]  # the error, or resolved fields and their values
    meaning: str


def _prompt(limits: RequestLimits) -> list[int]:
    return [0, 1]


def _filling(limits: RequestLimits) -> list[int]:
    return [0] * limits.context


def _default(limits: RequestLimits) -> SamplingParams:
    return SamplingParams()


def _row(
    case: str,
    outcome: type[InvalidRequestError] | dict[str, Any],
    meaning: str,
    prompt: Callable[[RequestLimits], list[int]] = _prompt,
    params: Callable[[RequestLimits], SamplingParams] = _default,
) -> EdgeValue:
    return EdgeValue(case=case, prompt=prompt, params=params, outcome=outcome, meaning=meaning)


GREEDY_BELOW = 1e-5
"""Temperatures below this are argmax: dividing logits by them overflows float32 for no visible effect."""


def _params(**fields: Any) -> Callable[[RequestLimits], SamplingParams]:
    return lambda limits: SamplingParams(**fields)


EDGE_VALUES: tuple[EdgeValue, ...] = (
    _row(
        "temperature 0",
        {"temperature": 0.0},
        "exact argmax, lowest id on ties",
        params=_params(temperature=0.0),
    ),
    _row("temperature -0.0", {"temperature": 0.0}, "the same", params=_params(temperature=-0.0)),
    _row("temperature 1e-6", {"temperature": 0.0}, "below 1e-5 is argmax", params=_params(temperature=1e-6)),
    _row("temperature nan", InvalidParameterError, "finite only", params=_params(temperature=float("nan"))),
    _row("temperature inf", InvalidParameterError, "finite only", params=_params(temperature=float("inf"))),
    _row("temperature -1", InvalidParameterError, "never negative", params=_params(temperature=-1.0)),
    _row("top_k 0", {"top_k": 0}, "off", params=_params(top_k=0)),
    _row("top_k -1", {"top_k": 0}, "off, as elsewhere in the field", params=_params(top_k=-1)),
    _row("top_k -2", InvalidParameterError, "no meaning", params=_params(top_k=-2)),
    _row(
        "top_k = vocabulary",
        {"top_k": 0},
        "everything is kept: off",
        params=lambda limits: SamplingParams(top_k=limits.vocab_size),
    ),
    _row("top_k > vocabulary", {"top_k": 0}, "everything is kept: off", params=_params(top_k=10**7)),
    _row("top_p 1", {"top_p": 1.0}, "off", params=_params(top_p=1.0)),
    _row(
        "top_p 0", InvalidParameterError, "would keep nothing; use temperature 0", params=_params(top_p=0.0)
    ),
    _row("min_p 0", {"min_p": 0.0}, "off", params=_params(min_p=0.0)),
    _row("min_p 1", {"min_p": 1.0}, "only tokens as likely as the likeliest", params=_params(min_p=1.0)),
    _row("min_p 1.1", InvalidParameterError, "0 to 1", params=_params(min_p=1.1)),
    _row(
        "repetition_penalty 0",
        InvalidParameterError,
        "would divide by zero; 0.01 to 100",
        params=_params(repetition_penalty=0.0),
    ),
    _row("repetition_penalty 1", {"edits": None}, "off", params=_params(repetition_penalty=1.0)),
    _row("presence_penalty nan", InvalidParameterError, "-2 to 2", params=_params(presence_penalty=math.nan)),
    _row("frequency_penalty 2.1", InvalidParameterError, "-2 to 2", params=_params(frequency_penalty=2.1)),
    _row("logit_bias empty", {"edits": None}, "no bias", params=_params(logit_bias={})),
    _row("logit_bias 101", InvalidParameterError, "-100 to 100", params=_params(logit_bias={3: 101.0})),
    _row(
        "logit_bias of id = vocabulary",
        InvalidParameterError,
        "ids of the vocabulary",
        params=lambda limits: SamplingParams(logit_bias={limits.vocab_size: 1.0}),
    ),
    _row(
        "allowed_token_ids empty",
        InvalidParameterError,
        "would allow nothing; None allows all",
        params=_params(allowed_token_ids=()),
    ),
    _row(
        "allowed ids all banned",
        InvalidParameterError,
        "would allow nothing",
        params=_params(allowed_token_ids=(3, 4), banned_token_ids=(4, 3)),
    ),
    _row(
        "allowed ids only end ids, min_tokens 1",
        InvalidParameterError,
        "the first token could be nothing",
        params=_params(allowed_token_ids=(3,), stop_token_ids=(3,), min_tokens=1),
    ),
    _row(
        "more ids than max_listed_ids",
        InvalidParameterError,
        "at most EngineConfig.max_listed_ids",
        params=lambda limits: SamplingParams(allowed_token_ids=(1,) * (limits.max_listed_ids + 1)),
    ),
    _row(
        "banned id -1", InvalidParameterError, "ids of the vocabulary", params=_params(banned_token_ids=(-1,))
    ),
    _row(
        "bad words that end in every allowed id",
        InvalidParameterError,
        "a position could be left with nothing",
        params=_params(allowed_token_ids=(3,), bad_words=((3, 3),)),
    ),
    _row("empty bad word", InvalidParameterError, "would match everywhere", params=_params(bad_words=((),))),
    _row(
        "bad word of 17 ids",
        InvalidParameterError,
        "at most 16: the device remembers so many tokens",
        params=_params(bad_words=((3,) * 17,)),
    ),
    _row(
        "bad word of one id",
        {"edits": TokenEdits(bias=((3, -math.inf),))},
        "the id is banned",
        params=_params(bad_words=((3,),)),
    ),
    _row("best_of < n", InvalidParameterError, "at least n", params=_params(n=3, best_of=2)),
    _row(
        "max_tokens 0",
        {"max_output": 0},
        "the prompt is computed and cached, no token, `length`",
        params=_params(max_tokens=0),
    ),
    _row("max_tokens 1", {"max_output": 1}, "exactly one token", params=_params(max_tokens=1)),
    _row("max_tokens None", {}, "until the context is full"),
    _row("max_tokens 2**31", {}, "the room left in the context", params=_params(max_tokens=2**31)),
    _row("max_tokens -1", InvalidParameterError, "never negative", params=_params(max_tokens=-1)),
    _row(
        "min_tokens > max_tokens",
        InvalidParameterError,
        "contradiction",
        params=_params(max_tokens=1, min_tokens=2),
    ),
    _row("n 0", InvalidParameterError, "at least one choice", params=_params(n=0)),
    _row(
        "logprobs 10**6",
        InvalidParameterError,
        "at most EngineConfig.max_logprobs",
        params=_params(logprobs=10**6),
    ),
    _row("logprobs -1", InvalidParameterError, "None for none", params=_params(logprobs=-1)),
    _row("draft_tokens 0", {"draft_tokens": 0}, "no drafts for this request", params=_params(draft_tokens=0)),
    _row(
        "draft_tokens -1", InvalidParameterError, "0 to the model's number", params=_params(draft_tokens=-1)
    ),
    _row(
        "draft_tokens beyond the model's",
        InvalidParameterError,
        "0 to the model's number",
        params=lambda limits: SamplingParams(draft_tokens=limits.model_draft_tokens + 1),
    ),
    _row("latency_target 0", InvalidParameterError, "finite and > 0", params=_params(latency_target=0.0)),
    _row(
        "latency_target nan", InvalidParameterError, "finite and > 0", params=_params(latency_target=math.nan)
    ),
    _row("seed -1", InvalidParameterError, "0 to 2**64 - 1", params=_params(seed=-1)),
    _row(
        "stop without text",
        InvalidParameterError,
        "stop strings need detokenize",
        params=_params(stop=("x",), detokenize=False),
    ),
    _row("empty stop string", InvalidParameterError, "would match everywhere", params=_params(stop=("",))),
    _row(
        "stop id outside the vocabulary",
        InvalidParameterError,
        "could never match",
        params=lambda limits: SamplingParams(stop_token_ids=(limits.vocab_size,)),
    ),
    _row("empty prompt", EmptyPromptError, "nothing to sample from", prompt=lambda limits: []),
    _row(
        "token id = vocabulary",
        TokenOutOfVocabularyError,
        "no embedding",
        prompt=lambda limits: [limits.vocab_size],
    ),
    _row("token id -1", TokenOutOfVocabularyError, "no embedding", prompt=lambda limits: [-1]),
    _row("prompt fills the context", PromptTooLongError, "no room for one token", prompt=_filling),
    _row(
        "prompt fills the context, max_tokens 0",
        {"max_output": 0},
        "allowed: it asks for no token",
        prompt=_filling,
        params=_params(max_tokens=0),
    ),
    _row(
        "prompt one short of the context",
        {"max_output": 1},
        "exactly one token",
        prompt=lambda limits: [0] * (limits.context - 1),
    ),
    _row(
        "prompt beyond the context",
        PromptTooLongError,
        "typed, at submission",
        prompt=lambda limits: [0] * (limits.context + 1),
    ),
    _row(
        "prompt that can never fit the pool",
        PromptNeverFitsError,
        "typed, at submission; see `validate`",
        prompt=lambda limits: [0] * (limits.usable_blocks * limits.block_tokens),
    ),
)
"""The edge values of a submission. Tests run every row; the README's table is printed from it."""
