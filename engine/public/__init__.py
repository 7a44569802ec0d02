"""Stepahead: an asyncio inference engine for DeepSeek-V4.1-Flash models.

    async with Engine.open() as engine:
        async for delta in engine.stream("Once upon a time", SamplingParams(max_tokens=64)):
            print(delta.text, end="", flush=True)

This package is the face of the project: it re-exports what an embedding application needs and holds no code.
Importing it changes nothing in the process and does not import torch.
"""

from stepahead.engine.config import EngineConfig
from stepahead.engine.engine import Engine
from stepahead.engine.errors import (
    ConfigError,
    DeviceStalledError,
    EmptyPromptError,
    EngineClosedError,
    EngineError,
    EngineFailedError,
    InvalidParameterError,
    InvalidRequestError,
    NoDeviceMemoryError,
    NotFiniteError,
    PromptNeverFitsError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
    RequestFailedError,
    SlowReaderError,
    StepaheadError,
    StreamInUseError,
    TokenOutOfVocabularyError,
    WrongLoopError,
)
from stepahead.engine.logprobs import PromptLogprobs
from stepahead.engine.metrics import prometheus_collector
from stepahead.engine.opening import LoopRunningError
from stepahead.engine.stream import Stream
from stepahead.engine.timings import Histogram, Timings
from stepahead.engine.tracer import TraceError
from stepahead.engine.types import (
    Completion,
    Delta,
    FinishReason,
    Health,
    HealthState,
    MailboxStatistics,
    SamplingParams,
    SpeculationStats,
    Stats,
    TokenLogprob,
    Usage,
)

__version__ = "0.1.0"

__all__ = [
    "Completion",
    "ConfigError",
    "Delta",
    "DeviceStalledError",
    "EmptyPromptError",
    "Engine",
    "EngineClosedError",
    "EngineConfig",
    "EngineError",
    "EngineFailedError",
    "FinishReason",
    "Health",
    "HealthState",
    "Histogram",
    "InvalidParameterError",
    "InvalidRequestError",
    "LoopRunningError",
    "MailboxStatistics",
    "NoDeviceMemoryError",
    "NotFiniteError",
    "PromptLogprobs",
    "PromptNeverFitsError",
    "PromptTooLongError",
    "QueueFullError",
    "RequestError",
    "RequestFailedError",
    "SamplingParams",
    "SlowReaderError",
    "SpeculationStats",
    "Stats",
    "StepaheadError",
    "Stream",
    "StreamInUseError",
    "Timings",
    "TokenLogprob",
    "TokenOutOfVocabularyError",
    "TraceError",
    "Usage",
    "WrongLoopError",
    "__version__",
    "prometheus_collector",
]
