"""What the application asks of an engine: `stepahead.Engine`, or anything that behaves like it."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from stepahead import Delta, Health, SamplingParams, Stats

from ..vocabulary import TokenizerLike


class EngineStream(Protocol):
    """A request in the engine; `stepahead.Stream` is one."""

    async def start(self) -> Any:
        """Queue the request. Raises what is wrong with it before anything is generated."""

    def __aiter__(self) -> AsyncGenerator[Delta, None]: ...

    async def aclose(self) -> None:
        """The caller wants no more."""


class EngineLike(Protocol):
    @property
    def tokenizer(self) -> TokenizerLike | None: ...

    def stream(
        self,
        prompt: npt.NDArray[np.int32],
        params: SamplingParams,
        *,
        request_id: str,
        cache_salt: str,
    ) -> EngineStream: ...

    def stats(self) -> Stats: ...

    def health(self) -> Health: ...


class Abilities:
    """What this engine can do of what requests may ask for, found by looking at its face."""

    def __init__(self, engine: EngineLike) -> None:
        arguments = inspect.signature(engine.stream).parameters
        self.session = "session" in arguments
        self.retention = "retention" in arguments
        self.images = "images" in arguments
        fields = SamplingParams.__struct_fields__
        self.grammar = next(
            (name for name in ("grammar", "constraint", "structured") if name in fields), None
        )
        """The field of `SamplingParams` that holds an output to a schema, if there is one."""
