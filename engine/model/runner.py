"""The seam between deciding and computing: three calls, and the arrays that cross them.

The CPU plans step n+1 while the device still runs step n, so a plan cannot contain what step n will decide:
sampled tokens, accepted drafts, hence positions. Everything in this file follows from one choice: **the
device keeps the state of every sequence in its slot** (position, last token, drafts, three previous tokens,
block table, sampling parameters). A decode row takes its tokens and position from the slot, always; a prompt
row takes them from the plan, always. The sampling of step n writes the slots, the forward of step n+1 reads
them, and the one ordered stream puts these in order. Nothing is ever corrected "if the previous step
overlapped", so overlap on and off run the same plan.

Rejected: a remap array from step n+1 to the rows of step n (the engine we learned from). It needs a cold
restart after every prompt step, cannot serve a sequence that skipped a step, and has two code paths where
this has one.

Notation: b sequences in the step, the first `decode_count` of them decode, the other c continue a prompt;
n rows = query tokens, flat, grouped by sequence in that order; D drafts, K = D + 1; slot 0 and block 0 are
scratch for padding. Every array is C-contiguous and read-only after the plan is made: a device may read it
much later than the call. This module imports no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec
import numpy as np
import numpy.typing as npt

from stepahead.devices.device import Ticket, WorkObserver

Bools = npt.NDArray[np.bool_]
Int8s = npt.NDArray[np.int8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
UInt64s = npt.NDArray[np.uint64]
Float32s = npt.NDArray[np.float32]

HISTORY = 3
"""Previous token ids a row's n-gram memory looks back to (model_spec 2.11)."""

NO_TOKEN = -1
"""Fills token arrays where there is none: before the first token, after the last, unused columns."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine must know of a model before caches exist."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_positions: int
    block_tokens: int  # tokens per cache block; 128 for V4.1
    block_bytes: int
    state_bytes: int  # of one state slot: window rings, compressor state, draft rings
    draft_tokens: int  # the model's own draft block; 0 without one
    backtracking: (
        int  # ring entries beyond the window; a step may write at most this many rows past a kept state
    )
    hit_margin: (
        int  # prompt rows behind a prefix hit that must be computed; 1, or `keep` under truncated prefill
    )


class RunnerShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes fixed when a runner is made; everything it allocates follows from them."""

    sequence_slots: int  # live sequences; their slots are 1..sequence_slots
    snapshot_slots: int  # kept states; their slots follow
    blocks: int  # block ids 0..blocks - 1
    table_columns: int  # ceil((max_context + 2K) / block_tokens)
    max_rows: int  # most rows of a step
    max_positions: int  # exclusive bound of every position ever used: max_context + 2K
    draft_tokens: int  # D
    max_stop_ids: int  # width of SamplingRows.end_ids
    max_logprobs: int
    max_listed_ids: int = 4096  # most ids in a list of `EditRows`
    rejection: bool = (
        False  # verifies drafts of random draws by rejection and keeps what they were drawn from
    )
    graph_sequences: int = 0  # of the largest decode step captured as a graph, where the device has graphs
    graphs_dealt: bool = False  # graphs can deal rows by confidence (`StepPlan.redeal`)

    @property
    def state_slots(self) -> int:
        """All state slots, the scratch slot 0 included."""
        return 1 + self.sequence_slots + self.snapshot_slots


class CaptureReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the graphs of a runner's decode steps cost when it was opened."""

    graphs: int
    largest_rows: int  # of a captured step; larger ones run eagerly
    seconds: float
    device_bytes: int


class BatchLayout(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Who is in a step and how its rows lie. Steady decode reuses one object (test by `is`)."""

    slots: Int32s  # [b] sequence slot = state slot
    sequence_keys: Int64s  # [b] host only: whose rows these are, whatever happens to the slot later
    admissions: Int64s  # [b] host only: the slot's occupant; differs from the ledger's once it left
    query_lengths: (
        Int32s  # [b] rows; decode: drafts to verify + 1, a provisional split when `StepPlan.redeal`
    )
    row_starts: Int32s  # [b] exclusive sum of query_lengths
    reach: Int32s  # [b] most tokens the step may add to `cached`: K for decode, query_lengths for prompts
    samples: Bools  # [b] draws a token: every decode, a prompt's last chunk
    decode_count: int
    rows: int  # n


class ScoredRows(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Prompt rows whose next token is known and whose log-probability was asked for: w rows of s chunks."""

    sequences: Int32s  # [s] indices into the layout
    first: Int32s  # [s] position of each one's first scored row; the row at p is of prompt token p + 1
    counts: Int32s  # [s] rows of each
    rows: Int32s  # [w] into the step's rows
    tokens: Int32s  # [w] the prompt's token behind each row
    alternatives: int  # most that anybody asked for


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Everything `launch_forward` needs, and nothing that the step in flight will decide."""

    step: int  # counts planned steps, from 0, without gaps
    layout: BatchLayout
    first_positions: Int32s
    """[b] position of each sequence's first row. Prompts: exact. Decode: optimistic, `cached + inflight`, an
    upper bound for host-side choices; the device uses the slot's, smaller by drafts - accepted of the step in
    flight."""
    chunk_tokens: Int32s  # [rows of prompts] token ids, in row order
    chunk_history: (
        Int32s  # [c, HISTORY] ids before each chunk's first row, oldest first, NO_TOKEN before the prompt
    )
    chunk_ends: Int32s  # [c] tokens to prefill in all (prompt, plus regenerated output after a preemption)
    table_updates: (
        Int32s  # [u, 3] (slot, column, block id): entries of block tables that are new since the last plan
    )
    state_copies: Int32s  # [s, 2] (source, destination) state slots, applied one after another
    redeal: bool = (
        False  # the device re-splits the decode rows by its newest confidences (adaptive verification)
    )
    drafts: bool = True  # False: the next step verifies none, so this one need not make any
    scored: ScoredRows | None = None


class SamplingRows(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Sampling parameters of slots that got a new occupant: u rows to write into the device's tables."""

    slots: Int32s  # [u]
    temperature: Float32s  # [u] exactly 0: argmax, lowest id on ties
    top_k: Int32s  # [u] 0 off
    top_p: Float32s  # [u] 1 off
    min_p: Float32s  # [u] 0 off
    seed: UInt64s  # [u]
    choice: Int32s  # [u] index among the request's n choices
    origin: Int32s  # [u] length of the caller's prompt: output position = token position - origin
    min_output: Int32s  # [u] end ids are banned before this output position
    end_ids: Int32s  # [u, max_stop_ids] ids that end the sequence, NO_TOKEN padded
    logprobs: Int32s  # [u] -1 none, else how many alternatives
    processed: Bools  # [u] logprobs of the distribution drawn from, not of the model's own
    forced: Int32s  # [u] what the prefill's last row draws, whatever its logits; NO_TOKEN: a draw
    most_drafts: Int32s  # [u] most drafts verified in a step; a `redeal` keeps to it


class EditRows(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Edits of single tokens' logits by those of a step's new occupants that have any: e rows.

    Lists are as wide as the longest of them (0 where nobody has one), padded with NO_TOKEN. `seen` is every
    token of the prompt and of the output so far, once; the device goes on counting from there.
    """

    slots: Int32s  # [e]
    presence: Float32s  # [e]
    frequency: Float32s  # [e]
    repetition: Float32s  # [e] 1 off
    bias_ids: Int32s  # [e, biases]
    bias_values: Float32s  # [e, biases] -inf bans
    allowed_ids: Int32s  # [e, allowed]; a row of NO_TOKEN allows all
    word_beginnings: Int32s  # [e, words, recent] what must stand before, aligned at the end
    word_ends: Int32s  # [e, words] the id that would complete the word
    recent: Int32s  # [e, recent] last output tokens, newest last
    seen_ids: Int32s  # [e, seen]; without penalties a row of NO_TOKEN
    seen_counts: Int32s  # [e, seen] 2 * (times in the output) + (1 if in the prompt)


class SamplePlan(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What `launch_sample` needs beyond the forward's plan. Made after step - 1 was committed."""

    step: int
    updates: SamplingRows
    logprobs: int  # most alternatives asked for in this step; -1: no logprobs at all
    all_greedy: bool  # a permission to skip work, never a change of result
    masks: npt.NDArray[np.uint32] | None = (
        None  # [n, ceil(vocab / 32)] bit 0 forbids a token; row order of the step
    )
    edits: EditRows | None = None  # of the newcomers in `updates` that have any; the others have none


class PromptScores(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Log-probabilities by the model itself, of the w rows of the plan's `ScoredRows`."""

    logprobs: Float32s  # [w] of the prompt's token behind each row
    top_logprobs: Float32s  # [w, alternatives] best first
    top_tokens: Int32s  # [w, alternatives]


class StepResult(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What a step decided. b as in its layout; columns past `emitted` hold NO_TOKEN, their logprobs 0."""

    step: int
    tokens: Int32s  # [b, K] accepted drafts, then the sampled token
    emitted: Int32s  # [b] 0 where the layout does not sample, else accepted + 1
    drafted: Int32s  # [b] drafts verified: query_lengths - 1 of a decode, as redealt where it was
    positions: Int32s  # [b] true position of the first row, for the invariant and the tracer
    finite: (
        Bools  # [b] False: no finite logit at a sampled row; that sequence fails alone, its tokens are void
    )
    logprobs: Float32s | None = None  # [b, K] of each emitted token
    top_logprobs: Float32s | None = None  # [b, K, t] best first
    top_tokens: Int32s | None = None  # [b, K, t]
    confidences: Float32s | None = None  # [b, D] of the drafts now in the slots; None: none were made
    prompt_scores: PromptScores | None = None  # where the plan has `scored`


class StepTime(msgspec.Struct, frozen=True):
    """What a decode step takes, in seconds."""

    seconds: float  # without drafting
    draft_seconds: float  # what drafting for its sequences adds; 0 without a draft block


class Runner(ABC):
    """A model with its caches on a device. All three calls return without waiting for the device.

    The caller's side (enforced by `actors/device_worker.py`, checked by `hashed.py`): launches come in the
    order F(0) S(0) F(1) S(1) ...; F(n+1) is launched as soon as plan n+1 exists and S(n) was
    launched, whether or not S(n) has ended; S(n+1) is launched only after S(n) was collected and committed.
    """

    facts: ModelFacts
    shape: RunnerShape
    captured: CaptureReport | None = None  # None: every step is launched kernel by kernel

    @abstractmethod
    def launch_forward(self, plan: StepPlan) -> None:
        """Enqueues, on the compute stream and in this order:

        1. `state_copies`: whole state slots, sequentially. They see the states left by step - 1.
        2. `table_updates` into the device's tables `[sequence_slots + 1, table_columns]`.
        3. Fix-ups. Decode sequence i: `f = position[slot]`; rows f .. f + q - 1 take `token[slot]`, then the
           first q - 1 of `drafts[slot]`; history from `history[slot]`. Prompts: all from the plan. With
           `redeal`, q is first split anew by the confidences in the slots, under the same total: one row
           a sequence, and one for each draft among the best by `scheduling/verification.deal`.
        4. The forward of all n rows; it writes block cache, window rings and compressor state there. Rows in
           `scored` reach the head too, a bounded number of them at a time.

        Raises `DeviceError` if the stream is poisoned or the launch itself fails.
        """

    @abstractmethod
    def launch_sample(self, plan: SamplePlan) -> Ticket:
        """Enqueues the sampling of the newest forward; the ticket settles when its result can be collected.

        1. `updates` and `edits` into the sampling tables.
        2. For every sequence that samples: logits of its rows (of a prompt: of its last), bans, masks,
           processing, verification of drafts, the draw. Random numbers come from `sampling/seeds.py` only.
        3. Slots: `position` = f + emitted (decode) or the chunk's end; `token` = the last emitted; `history`
           follows. A prompt chunk that does not sample advances `position` only.
        4. Drafts of the sequences that sampled, into `drafts`, unless the step's plan needs none.
        """

    @abstractmethod
    def collect(self, ticket: Ticket) -> StepResult:
        """The result behind a settled ticket of `launch_sample`; its arrays belong to the caller.

        Raises the ticket's error. Each ticket is collected once, in order.
        """

    def padded_rows(self) -> list[int]:
        """Row counts, ascending, to the next of which a decode step is padded; none: it costs its rows."""
        return []

    def time_step(self, sequences: int, rows: int) -> StepTime | None:
        """Of a decode step on scratch places; None: cannot tell. Blocking; while opening only."""
        return None

    def time_work(self, observer: WorkObserver) -> None:
        """For a runner whose device is elsewhere: does what `Device.time_work` promises in its place."""
        return

    @abstractmethod
    def close(self) -> None:
        """Frees caches and weights. The device is closed by whoever opened it. Idempotent."""
