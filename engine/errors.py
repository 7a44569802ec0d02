"""Every error the engine raises, as one tree.

An embedder must be able to tell three situations apart without reading text: this request is wrong, this
request was not served, the engine itself is gone. They are the three branches below. Messages say what was
wrong, where, and what is allowed; the values are attributes, so that a protocol edge can build its own text.
Rejected: returning None or logging for a bad request, which shifts results of batch calls silently.
"""

from __future__ import annotations


class StepaheadError(Exception):
    """Root of every error raised on purpose by Stepahead."""


# The request is wrong: raised to its caller at submission, before it is queued.


class InvalidRequestError(StepaheadError, ValueError):
    """A request that no state of the engine could serve."""


class InvalidParameterError(InvalidRequestError):
    """A sampling parameter outside its domain."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"{field}={value!r} is not allowed: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


class EmptyPromptError(InvalidRequestError):
    """A prompt of zero tokens: there is no position whose logits could be sampled."""

    def __init__(self) -> None:
        super().__init__(
            "the prompt has no tokens; at least one is needed (a beginning-of-text token counts)"
        )


class TokenOutOfVocabularyError(InvalidRequestError):
    """A prompt token id that the embedding table does not have."""

    def __init__(self, position: int, token: int, vocab_size: int) -> None:
        super().__init__(f"prompt token {token} at position {position} is outside 0..{vocab_size - 1}")
        self.position, self.token, self.vocab_size = position, token, vocab_size


class PromptTooLongError(InvalidRequestError):
    """A prompt that leaves no room for the output it asks for in the model's context."""

    def __init__(self, length: int, context: int) -> None:
        super().__init__(
            f"a prompt of {length} tokens leaves no room for an output token in a context of {context}; "
            f"at most {context - 1} prompt tokens, or {context} with max_tokens=0"
        )
        self.length, self.context = length, context


class PromptNeverFitsError(InvalidRequestError):
    """A prompt that needs more cache blocks than the engine owns, even alone."""

    def __init__(self, blocks_needed: int, blocks_owned: int) -> None:
        super().__init__(
            f"the prompt needs {blocks_needed} cache blocks and the engine owns {blocks_owned}; "
            "open the engine with more kv_blocks or memory_fraction"
        )
        self.blocks_needed, self.blocks_owned = blocks_needed, blocks_owned


# The request was right and was not served.


class RequestError(StepaheadError):
    """One request ended without its result. No other request is affected."""


class QueueFullError(RequestError):
    """The admission queue is full and its policy is `reject`."""

    def __init__(self, waiting: int, estimate_seconds: float | None) -> None:
        hint = "" if estimate_seconds is None else f"; room is expected in about {estimate_seconds:.1f} s"
        super().__init__(f"{waiting} requests are already waiting{hint}")
        self.waiting, self.estimate_seconds = waiting, estimate_seconds


class SlowReaderError(RequestError):
    """The reader fell behind its buffer and the policy for slow readers is `abort`."""

    def __init__(self, unread_tokens: int) -> None:
        super().__init__(f"the stream was closed with {unread_tokens} unread tokens")
        self.unread_tokens = unread_tokens


class RequestFailedError(RequestError):
    """An exception in work done for this request alone (its cause is `__cause__`)."""

    def __init__(self, where: str) -> None:
        super().__init__(f"the request failed in {where}")
        self.where = where


class NotFiniteError(RequestError):
    """The model produced no finite logit at a position of this request."""

    def __init__(self, position: int) -> None:
        super().__init__(f"the logits of position {position} are not finite")
        self.position = position


class StreamInUseError(RequestError):
    """A stream is iterated or closed by a second task while a first one awaits it."""

    def __init__(self) -> None:
        super().__init__("another task is already awaiting this stream; a stream has one reader")


# The engine.


class EngineError(StepaheadError):
    """The engine cannot serve anybody."""


class ConfigError(EngineError, ValueError):
    """A knob of `EngineConfig` outside its bounds, or one the model or device cannot honour."""

    def __init__(self, field: str, value: object, allowed: str) -> None:
        super().__init__(f"EngineConfig.{field}={value!r} is not allowed: {allowed}")
        self.field, self.value, self.allowed = field, value, allowed


class NoDeviceMemoryError(EngineError):
    """The device has no room for the model, its caches or its captured steps (its cause says which)."""

    def __init__(self, device: str, what: str) -> None:
        super().__init__(
            f"{device} has no room for this engine ({what}); open it with a smaller memory_fraction, "
            "max_sequences, max_step_rows or graph_sequences"
        )
        self.device = device


class EngineClosedError(EngineError):
    """The engine was closed, or is closing, or was never opened."""

    def __init__(self, state: str = "closed") -> None:
        super().__init__(f"the engine is {state}")
        self.state = state


class WrongLoopError(EngineError):
    """The engine belongs to another event loop than the caller's."""

    def __init__(self, owner: object, caller: object) -> None:
        super().__init__(
            f"this engine was opened in {owner!r} and is used from {caller!r}; open one engine per event loop"
        )
        self.owner, self.caller = owner, caller


class EngineFailedError(EngineError):
    """An actor or the device failed; every stream ends with this one error (its cause is `__cause__`)."""

    def __init__(self, where: str) -> None:
        super().__init__(f"the engine failed in {where}")
        self.where = where


class DeviceStalledError(EngineError):
    """The device did not finish a step within the stall limit."""

    def __init__(self, step: int, seconds: float) -> None:
        super().__init__(f"step {step} did not finish on the device within {seconds:g} s")
        self.step, self.seconds = step, seconds
