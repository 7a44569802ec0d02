"""A workload as data: everything that may influence a run, and nothing else. Times are virtual seconds."""

from __future__ import annotations

from typing import Literal

import msgspec

from stepahead import EngineConfig, SamplingParams
from stepahead.engine.model.hashed import HashedModel

MAX_POSITIONS = 192


class Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the script's parts: printed as Python, without what is default."""

    def __repr__(self) -> str:
        said = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in msgspec.structs.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{type(self).__name__}({', '.join(said)})"


class Model(Struct):
    """Fields of `HashedModel`."""

    vocab_size: int = 64
    block_tokens: int = 4
    window: int = 5
    backtracking: int = 6
    hit_margin: int = 1
    draft_tokens: int = 0
    draft_accuracy: float = 0.7
    nonfinite_rate: float = 0.0

    def hashed(self) -> HashedModel:
        return HashedModel(max_positions=MAX_POSITIONS, **msgspec.structs.asdict(self))


class Knobs(Struct):
    """Fields of `EngineConfig`."""

    overlap: bool = True
    max_sequences: int = 3
    max_step_rows: int = 64
    prefill_chunk: int = 16
    max_context: int = 64
    kv_blocks: int = 129
    prefix_cache: bool = True
    snapshot_slots: int | None = None
    queue_capacity: int = 4096
    queue_policy: Literal["wait", "reject"] = "wait"
    max_bypass: int = 32
    slow_reader: Literal["coalesce", "abort"] = "coalesce"
    unread_tokens: int = 8192
    stall_seconds: float = 60.0
    mailbox_capacity: int = 8192
    draft_tokens: int | None = None
    verify: Literal["adaptive", "all"] | int = "all"
    acceptance: Literal["coupled", "rejection"] = "coupled"

    def config(self) -> EngineConfig:
        return EngineConfig(**msgspec.structs.asdict(self))


class DeviceScript(Struct):
    """Latency of a label: its base, times 1 + jitter * (a hash of seed and label in 0..1).

    A forward's base grows by `row` with each row, and where somebody chooses how many drafts to verify that
    is what it is told. With `budgets` the number is a hash instead, and so is whether a step drafts at all.
    """

    forward: float = 1e-3
    row: float = 0.0
    budgets: int = 0  # a seed; 0: by cost
    sample: float = 1e-4
    jitter: float = 0.0
    seed: int = 0
    fault_at: str = ""  # the label of the work that fails
    fault: Literal["error", "hang"] = "error"


Leave = Literal["read", "break", "drop", "cancel", "timeout", "abort", "never_start"]


class Client(Struct):
    """One caller: what it asks, how it reads, how it leaves.

    "break" and "drop" leave after `after_deltas` deltas, with and without `aclose`; "cancel", "timeout" and
    "abort" after `after_seconds`: its task is cancelled, its own time is up, somebody calls `engine.abort`.
    """

    prompt: tuple[int, ...]
    at: float = 0.0
    max_tokens: int | None = 8
    min_tokens: int = 0
    temperature: float = 0.0
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
    seed: int = 0
    draft_tokens: int | None = None
    latency_target: float | None = None
    n: int = 1
    best_of: int | None = None
    logprobs: int | None = None
    logprobs_of: Literal["model", "processed"] = "model"
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    detokenize: bool = True
    priority: int = 0
    deadline: float | None = None  # seconds after `at`
    salt: str = ""
    session: str = ""
    retention: Literal["chat", "agent"] = "chat"
    pause: float = 0.0  # seconds it sleeps after every delta
    leave: Leave = "read"
    after_deltas: int = 0
    after_seconds: float = 0.0

    def params(self) -> SamplingParams:
        names = set(SamplingParams.__struct_fields__).intersection(self.__struct_fields__)
        return SamplingParams(**{name: getattr(self, name) for name in names})


class Event(Struct):
    """What the application does at a time."""

    at: float
    kind: Literal["pause", "reset", "abort_all", "drain", "stats"]
    seconds: float = 0.0  # of a pause


class Script(Struct):
    """One workload. `close_at`: the application closes the engine then, whatever runs."""

    model: Model = Model()
    knobs: Knobs = Knobs()
    device: DeviceScript = DeviceScript()
    clients: tuple[Client, ...] = ()
    events: tuple[Event, ...] = ()
    close_at: float | None = None


def to_json(script: Script) -> str:
    return msgspec.json.encode(script).decode()


def from_json(text: str) -> Script:
    return msgspec.json.decode(text, type=Script)
