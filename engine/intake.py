"""How a request gets in, and the register of those that are in.

Between a caller's arguments and a queued request lie a tokenizer that may take a second and a mailbox that
may be full, and the caller may be gone after any of these waits. So a request is registered before its first
message is sent, and from then on leaving it, however that happens, posts exactly one cancellation. Those of
one turn of the loop are collected in one message: a thousand streams may leave at once. Rejected: one message
each, which a bounded mailbox would have to refuse at the worst moment.

Invariant: every sequence the actors know is registered here or has had its cancellation posted.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from stepahead.actors.actor import Address, MailboxClosedError, Reply
from stepahead.actors.delta_channel import DeltaChannel
from stepahead.actors.messages import RequestCancelled, RequestSubmitted, StreamOpened

from .config import RequestLimits
from .errors import EngineClosedError, EngineError, InvalidParameterError, WrongLoopError
from .prompts import Prompt, is_long, prompt_tokens
from .text.tokenizer import Tokenizer
from .tracer import Tracer, TraceSession
from .types import FinishReason, Request, ResolvedParams, Retention, SamplingParams
from .validation import validate

_TEXT_THREADS = 2


class Submission(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller passed to `Engine.stream`."""

    prompt: Prompt
    params: SamplingParams
    request_id: str | None
    priority: int
    deadline: float | None
    cache_salt: str | bytes
    session: str = ""
    retention: Retention = "chat"
    trace: bool | str | Path = False


class Registration:
    """One request that is in. Knows no stream, so that a dropped stream can be collected."""

    __slots__ = ("_intake", "channel", "followed", "keys", "label", "reply", "trace")

    def __init__(self, intake: Intake, keys: tuple[int, ...], label: str | None, reply: Reply[None]) -> None:
        self._intake, self.keys, self.label, self.reply = intake, keys, label, reply
        self.channel = DeltaChannel(len(keys))
        self.followed = False  # a trace shows it step by step
        self.trace: TraceSession | None = None  # a file of its own

    def leave(self) -> None:
        """The caller wants no more of it. Idempotent; on the engine's loop."""
        self._intake.leave(self)

    def leave_threadsafe(self) -> None:
        self._intake.leave_threadsafe(self)


class Intake:
    """Makes requests of submissions, registers them, and hands them to the actors. One per engine."""

    def __init__(
        self,
        limits: RequestLimits,
        tokenizer: Tokenizer | None,
        queue_capacity: int,
        output: Address[StreamOpened],
        scheduler: Address[RequestSubmitted | RequestCancelled],
        tracer: Tracer,
    ) -> None:
        self._limits, self._tokenizer, self._queue_capacity = limits, tokenizer, queue_capacity
        self._to_output, self._to_scheduler = output, scheduler
        self.tracer = tracer
        self.loop = asyncio.get_running_loop()
        self._keys = itertools.count(1)
        self._registered: dict[int, Registration] = {}
        self._leaving: list[int] = []
        self._threads: ThreadPoolExecutor | None = None
        self._refusal: Callable[[], EngineError] | None = None

    # In.

    async def submit(self, submission: Submission) -> Registration:
        """Raises `InvalidRequestError` before anything is queued, `QueueFullError`, or `EngineError`."""
        self.check_loop()
        self._check_open()
        arrival = self.loop.time()
        params = _typed(submission)
        tokens = await self._tokens(submission.prompt)
        resolved = validate(tokens, params, self._limits)
        if params.best_of is not None and params.best_of != params.n:
            allowed = "n in a stream, which cannot choose afterwards; generate and generate_many can"
            raise InvalidParameterError("best_of", params.best_of, allowed)
        if params.n > self._queue_capacity:
            raise InvalidParameterError("n", params.n, f"at most queue_capacity = {self._queue_capacity}")
        self._check_open()
        requests = self._requests(submission, tokens, resolved, params.n, arrival)
        registration = Registration(
            self, tuple(request.key for request in requests), submission.request_id, Reply()
        )
        self._registered[registration.keys[0]] = registration
        try:
            if submission.trace is not False:
                await self._trace(registration, submission.trace)
            self._follow(registration, requests)
            await self._send(requests, registration)
        except BaseException:
            self.leave(registration)
            raise
        return registration

    async def _send(self, requests: tuple[Request, ...], registration: Registration) -> None:
        try:
            await self._to_output.send(StreamOpened(requests=requests, channel=registration.channel))
            await self._to_scheduler.send(RequestSubmitted(requests=requests, reply=registration.reply))
        except MailboxClosedError:
            raise self._closed() from None
        await registration.reply

    async def _trace(self, registration: Registration, asked: str | Path | Literal[True]) -> None:
        path = Path(f"stepahead-request-{registration.keys[0]}.json" if asked is True else asked)
        session = self.tracer.session(path, only=frozenset(registration.keys))
        await session.start()
        registration.trace = session

    def _follow(self, registration: Registration, requests: tuple[Request, ...]) -> None:
        registration.followed = self.tracer.follow(registration.trace is not None)
        for request in requests:
            tokens = len(request.prompt) // 4
            self.tracer.recorder.opened(request.key, request.label, tokens, registration.followed)

    async def _tokens(self, prompt: Prompt) -> npt.NDArray[np.int32]:
        arguments = prompt, self._tokenizer, self._limits.vocab_size, self._limits.context
        if not is_long(prompt):
            return prompt_tokens(*arguments)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_TEXT_THREADS, thread_name_prefix="stepahead-text")
        return await self.loop.run_in_executor(self._threads, prompt_tokens, *arguments)

    def _requests(
        self,
        submission: Submission,
        tokens: npt.NDArray[np.int32],
        params: ResolvedParams,
        choices: int,
        arrival: float,
    ) -> tuple[Request, ...]:
        keys = tuple(itertools.islice(self._keys, choices))
        silent = msgspec.structs.replace(params, prompt_logprobs=-1)  # the first choice speaks for all
        salt, prompt = submission.cache_salt, tokens.astype("<i4").tobytes()
        return tuple(
            Request(
                key=key,
                group=keys[0],
                choice=choice,
                leader=keys[0],
                label=submission.request_id,
                prompt=prompt,
                params=silent if choice else params,
                priority=submission.priority,
                arrival=arrival,
                deadline=submission.deadline,
                salt=salt.encode() if isinstance(salt, str) else salt,
                session=submission.session,
                retention=submission.retention,
            )
            for choice, key in enumerate(keys)
        )

    # Out.

    def leave(self, registration: Registration) -> None:
        """Unregisters a request and cancels what still runs of it."""
        if self._registered.pop(registration.keys[0], None) is None:
            return
        if not registration.channel.ended:
            self._cancel(registration.keys)
        if registration.followed:
            self.tracer.unfollow()
        if registration.trace is not None:
            registration.trace.stop()

    def leave_threadsafe(self, registration: Registration) -> None:
        """The same from a finalizer: on any thread, at any moment, even after the loop has gone."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.leave, registration)

    def abort(self, label: str) -> int:
        """Cancels every request with this label; their streams end with `FinishReason.ABORT`."""
        found = [r for r in self._registered.values() if r.label == label and not r.channel.ended]
        for registration in found:
            self._cancel(registration.keys)
        return len(found)

    def _cancel(self, keys: tuple[int, ...]) -> None:
        if not self._leaving:
            self.loop.call_soon(self._post_cancellations)
        self._leaving.extend(keys)

    def _post_cancellations(self) -> None:
        keys, self._leaving = tuple(self._leaving), []
        with suppress(MailboxClosedError):
            self._to_scheduler.post(RequestCancelled(sequence_keys=keys, reason=FinishReason.ABORT))

    # The end.

    def refuse(self, make_error: Callable[[], EngineError]) -> None:
        """From now on submissions raise this."""
        self._refusal = make_error

    def end(self, make_error: Callable[[], EngineError]) -> None:
        """No actor runs any more: every stream and every pending submission ends with this error."""
        self.refuse(make_error)
        for registration in self._registered.values():
            registration.channel.fail(make_error)
            registration.reply.fail(make_error())
        self._registered.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def check_loop(self) -> None:
        """Raises `WrongLoopError` elsewhere than on the loop the engine was opened in."""
        running = asyncio.get_running_loop()
        if running is not self.loop:
            raise WrongLoopError(self.loop, running)

    def _check_open(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    def _closed(self) -> EngineError:
        return EngineClosedError() if self._refusal is None else self._refusal()


def _typed(submission: Submission) -> SamplingParams:
    """The parameters with every field of its declared type, which a struct does not check by itself."""
    if type(submission.priority) is not int:
        raise InvalidParameterError("priority", submission.priority, "an int")
    if not isinstance(submission.session, str):
        raise InvalidParameterError("session", submission.session, "text")
    if submission.retention not in get_args(Retention):
        raise InvalidParameterError("retention", submission.retention, " or ".join(get_args(Retention)))
    deadline = submission.deadline
    if deadline is not None and not (isinstance(deadline, int | float) and not math.isnan(deadline)):
        raise InvalidParameterError("deadline", deadline, "None, or seconds on the loop's clock")
    fields = msgspec.structs.asdict(submission.params)
    try:
        return msgspec.convert(fields, SamplingParams)
    except msgspec.ValidationError as error:
        field = str(error).rpartition("$.")[2].partition("[")[0].rstrip("`")
        raise InvalidParameterError(field, fields.get(field), str(error)) from None
