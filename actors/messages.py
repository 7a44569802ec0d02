"""Every message between actors: frozen, and named for the event it reports.

Read top to bottom they are a token's way through the engine. A message carries values or arrays nobody will
change, never an object of another actor. Those with a `reply` ask; all others report.
"""

from __future__ import annotations

import msgspec

from stepahead.engine.cache.reservation import Demand, Grant, Publication
from stepahead.engine.model.runner import SamplePlan, StepPlan, StepResult
from stepahead.engine.sampling.commit import StepCommit
from stepahead.engine.types import FinishReason, Occupant, Request

from .actor import Reply
from .delta_channel import DeltaChannel


class Message(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Root of all messages."""


# From the face to the output actor, then to the scheduler.


class StreamOpened(Message, frozen=True, kw_only=True, eq=False):
    """A caller will read these sequences from `channel`. Sent before they are submitted to the scheduler."""

    requests: tuple[Request, ...]
    channel: DeltaChannel


class RequestSubmitted(Message, frozen=True, kw_only=True, eq=False):
    """Validated sequences of one request, all or none to be queued. The output actor knows them already."""

    requests: tuple[Request, ...]
    reply: Reply[
        None
    ]  # fails with QueueFullError under the policy `reject`; under `wait`, answers when queued


class RequestCancelled(Message, frozen=True, kw_only=True, eq=False):
    """A caller left, aborted, or its stop string was found: the sequences leave at the next plan."""

    sequence_keys: tuple[int, ...]
    reason: (
        FinishReason | None
    )  # None: the stream has had its terminal event (the output actor found the end)


class AllRequestsCancelled(Message, frozen=True, kw_only=True, eq=False):
    """`abort_all`."""


class PauseChanged(Message, frozen=True, kw_only=True, eq=False):
    """Planning stops (steps in flight still commit) or goes on. Answers once nothing is in flight."""

    paused: bool
    reply: Reply[None]


class DrainRequested(Message, frozen=True, kw_only=True, eq=False):
    """No new request will come. The scheduler passes it on to the output actor once nobody is left, and that
    one answers: by then the last stream has had its terminal event."""

    reply: Reply[None]


class PrefixCacheResetRequested(Message, frozen=True, kw_only=True, eq=False):
    """Forget cached content that no running sequence uses. The scheduler forwards it to the cache manager."""

    reply: Reply[None]


class DeadlineReached(Message, frozen=True, kw_only=True, eq=False):
    """The earliest deadline among unfinished requests has passed (posted by the scheduler's own timer)."""


# One lap of a step.


class ReservationRequested(Message, frozen=True, kw_only=True, eq=False):
    """Scheduler -> cache manager."""

    demand: Demand
    reply: Reply[Grant] | None  # None when the demand asks for nothing


class BlocksFilled(Message, frozen=True, kw_only=True, eq=False):
    """Scheduler -> cache manager: committed content that others may share from now on."""

    publications: tuple[Publication, ...]


class StepPlanned(Message, frozen=True, kw_only=True, eq=False):
    """Scheduler -> device worker and sampler: step n+1, made from the ledger after commit n-1."""

    plan: StepPlan
    admitted: tuple[Occupant, ...]  # sequences that enter their slot with this step


class SamplingPrepared(Message, frozen=True, kw_only=True, eq=False):
    """Sampler -> device worker: step n was committed, so step n+1 may be sampled."""

    plan: SamplePlan


class StepLaunched(Message, frozen=True, kw_only=True, eq=False):
    """Device worker -> scheduler, only when asked to trace or to bound memory: F(n) is enqueued."""

    step: int


class StepSampled(Message, frozen=True, kw_only=True, eq=False):
    """Device worker -> sampler: the event of S(n) fired and its result was collected."""

    result: StepResult
    seconds: float = 0.0  # the device spent on the step; 0: unknown
    device_waits: bool = False  # nothing was enqueued behind the step when it ended


class StepCommitted(Message, frozen=True, kw_only=True, eq=False):
    """Sampler -> scheduler, which passes it on to output behind the plan that the commit allows, or a few
    such at once while the device waits for the host."""

    commit: StepCommit
    seconds: float = 0.0  # the device spent on the step; 0: unknown
    device_waits: bool = False  # nothing was enqueued behind the step when it ended


# The ends of sequences and of the engine.


class SequencesAdmitted(Message, frozen=True, kw_only=True, eq=False):
    """Scheduler -> output: prompt tokens found in the cache, for `Usage` (again after each preemption)."""

    sequence_keys: tuple[int, ...]
    cached_tokens: tuple[int, ...]
    resumed: tuple[bool, ...]
    replays: tuple[bool, ...]  # its next token is one that was told already


class SequencesClosed(Message, frozen=True, kw_only=True, eq=False):
    """Scheduler -> output: sequences that ended without a commit. Ignored for streams that ended already."""

    sequence_keys: tuple[int, ...]
    reason: FinishReason | None
    error: Exception | None  # exactly one of reason and error


class DeviceFailed(Message, frozen=True, kw_only=True, eq=False):
    """A ticket reported an error, or the stall limit passed (posted to the device worker by callbacks)."""

    error: BaseException
