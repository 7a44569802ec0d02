"""The nouns of the engine as frozen structs: what a caller says, what it hears back, what can be asked.

One page that reads as the architecture. Everything here is immutable and holds no behaviour beyond reading
itself, so that it can cross actors, threads and processes without a question about who may change it.
"""

from __future__ import annotations

from enum import Enum
from typing import Literal

import msgspec

from .logprobs import PromptLogprobs as PromptLogprobs
from .logprobs import TokenLogprob as TokenLogprob
from .model.runner import CaptureReport
from .speculation_stats import SpeculationStats as SpeculationStats
from .timings import Timings

Retention = Literal["chat", "agent"]
"""How long the cache should remember a prompt: what an agent used is evicted late (cache/prefix_index.py)."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How the caller wants tokens chosen and when to stop. Edge values: `config.EDGE_VALUES`.

    Order: repetition, frequency, presence penalty; `logit_bias`; allowed and banned ids, bad words, end ids
    before `min_tokens`; temperature; then top_k, top_p and min_p, each judged on that distribution, so that
    the strictest wins. `temperature` 0 is exact argmax; `top_k` 0, `top_p` 1, `min_p` 0 are off; `max_tokens`
    None fills the context; `seed` None draws one at submission. The repetition penalty counts prompt and
    output, the other two the output. A bad word is a sequence of ids that the output never contains.
    `logprobs` None reports none, 0 the chosen token's, k the k best too, of the model's own distribution or
    (`logprobs_of="processed"`) of the one drawn from. `prompt_logprobs` reports the same of every token of
    the prompt but its first, always of the model's own distribution. `best_of` generates that many choices
    and returns the `n` with the highest mean logprob; a stream cannot. `stop` strings need `detokenize`. A
    stop string or id is cut from the output unless `include_stop`. `draft_tokens` caps the drafts verified
    for this request in a step: 0 switches speculation off for it, None leaves the engine's number.
    `latency_target`, in seconds per token, is kept where the choice of drafts can keep it (`verify=
    "adaptive"`): among choices that do, the one with the best throughput is made.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    banned_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int | None = None
    n: int = 1
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    logprobs: int | None = None
    logprobs_of: Literal["model", "processed"] = "model"
    draft_tokens: int | None = None
    latency_target: float | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True


class FinishReason(Enum):
    """Why a stream ended well. A stream that ends badly raises instead; it never does both."""

    STOP = "stop"  # end-of-text, a stop id or a stop string
    LENGTH = "length"  # max_tokens, or the context is full
    ABORT = "abort"  # the caller or the application cancelled it
    DEADLINE = "deadline"  # its deadline passed


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """What a request consumed. Times are seconds on the engine's clock."""

    prompt_tokens: int
    cached_tokens: int  # prompt tokens taken from the prefix cache
    output_tokens: int
    drafted_tokens: int  # drafts verified by the model
    accepted_tokens: int  # drafts that became output
    decode_steps: int = 0  # after the prompt's; output_tokens - 1 - accepted_tokens, or one more
    accepted_by_position: tuple[int, ...] = ()  # of the first draft of a step, of the second, ...
    preemptions: int
    queue_seconds: float
    first_token_seconds: float | None  # None: it ended before a first token


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """The news since the previous delta of one choice. Several steps coalesce when the reader is slow.

    `text` never holds half a character; `token_ids` are those that became part of the output since then.
    The last delta of a choice, and only it, carries `finish_reason` and `usage`; the first one of choice 0
    the prompt's logprobs, where they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    index: int = 0  # which of the n choices
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """One finished choice, whole. The prompt's logprobs are those of all choices and stand in the first."""

    request_id: str | None
    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class TokenEdits(msgspec.Struct, frozen=True, kw_only=True):
    """What a request changes about single tokens' logits. Most requests have none of it and carry None."""

    presence: float = 0.0
    frequency: float = 0.0
    repetition: float = 1.0
    bias: tuple[tuple[int, float], ...] = ()  # by id, each once; -inf bans
    allowed: tuple[int, ...] = ()  # empty: all; each once
    bad_words: tuple[tuple[int, ...], ...] = ()  # of two ids or more: a single one is banned

    @property
    def counts_tokens(self) -> bool:
        """Whether logits depend on which tokens came before."""
        return (self.presence, self.frequency, self.repetition) != (0.0, 0.0, 1.0)


class ResolvedParams(msgspec.Struct, frozen=True, kw_only=True):
    """`SamplingParams` after `validation.validate`: no None, no special case left, nothing out of range."""

    temperature: float  # 0.0 exactly means argmax
    top_k: int  # 0 off, else 1..vocab_size - 1
    top_p: float
    seed: int  # 0..2**64 - 1
    max_output: int  # 0..context - prompt
    min_output: int
    end_ids: tuple[int, ...]  # ids that finish the sequence: end-of-text unless ignored, stop ids
    stop: tuple[str, ...]
    include_stop: bool
    logprobs: int  # -1 none, 0 the chosen token's, k also the k best
    detokenize: bool
    min_p: float = 0.0
    edits: TokenEdits | None = None
    logprobs_processed: bool = False  # of the distribution drawn from, not the model's own
    draft_tokens: int = 1024  # most drafts verified in a step; more than there are: all
    latency_target: float | None = None  # seconds per token
    prompt_logprobs: int = -1  # as `logprobs`, of the prompt's tokens


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence to generate: a request's `n` choices are n of these, one `group`, keys in choice order.

    `key` is ours, unique for the engine's life; `label` is the caller's and identifies nothing. `prompt` is
    little-endian int32 bytes (immutable, hashable, `np.frombuffer` reads it without a copy). `salt` separates
    prefix caches. `leader` is the key of choice 0: the others wait until its prompt is cached, then share it.
    """

    key: int
    group: int
    choice: int
    leader: int
    label: str | None
    prompt: bytes
    params: ResolvedParams
    priority: int  # higher is served first
    arrival: float  # seconds on the loop's clock
    deadline: float | None  # same clock
    salt: bytes
    session: str = ""
    retention: Retention = "chat"


class Occupant(msgspec.Struct, frozen=True, kw_only=True):
    """A sequence that enters a slot, for the first time or again after a preemption."""

    slot: int
    request: Request
    output: int  # tokens it has emitted already; all of its earlier steps are committed
    generated: bytes = b""  # these tokens, int32, for a request whose edits look back at them
    forced: int = -1  # the next token, which it had emitted before a preemption; not among `output`


class MailboxStatistics(msgspec.Struct, frozen=True):
    """One mailbox at one moment, and its history."""

    depth: int
    capacity: int
    high_water: int  # deepest it has been
    posted: int  # messages since the start
    senders_waiting: int


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters of a running engine: totals since it opened, and the present state."""

    steps: int
    running: int
    waiting: int
    kv_blocks: int  # owned, without the scratch block
    kv_blocks_free: int  # unreferenced, whether or not their content is still cached
    kv_blocks_cached: int  # unreferenced with content a hit can use
    snapshots: int
    snapshots_free: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    drafted_tokens: int
    accepted_tokens: int
    speculation: SpeculationStats = SpeculationStats()
    finished: int
    aborted: int
    failed: int
    preemptions: int
    coalesced_deltas: int
    mailboxes: dict[str, MailboxStatistics]
    timings: Timings
    graphs: CaptureReport | None = None  # of decode steps that replay; None where none do


class HealthState(Enum):
    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    DRAINING = "draining"
    FAILED = "failed"
    CLOSED = "closed"


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the engine can serve, and if not, why."""

    state: HealthState
    reason: str = ""
    seconds_since_step: float | None = None  # since the last step finished on the device

    @property
    def ok(self) -> bool:
        return self.state in (HealthState.READY, HealthState.PAUSED, HealthState.DRAINING)
