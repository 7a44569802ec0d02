"""Errors as HTTP answers: whose fault it was decides the status."""

from __future__ import annotations

import logging

import msgspec

from stepahead import (
    EngineClosedError,
    EngineError,
    InvalidRequestError,
    PromptTooLongError,
    QueueFullError,
    RequestError,
    SlowReaderError,
)

from ..errors import ConversionError, PromptEncodingError

_RETRY_SECONDS = 1
_logger = logging.getLogger("stepahead.http")


class HttpError(Exception):
    """An answer that is an error. `retry_after` is in seconds."""

    def __init__(self, status: int, message: str, kind: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.kind, self.retry_after = status, message, kind, retry_after


def as_http(error: Exception) -> HttpError:
    """The answer to a request that ended in this error.

    What is not known is our own fault: 500, and the message goes to the log, not out.
    """
    if isinstance(error, HttpError):
        return error
    if isinstance(error, ConversionError):
        return HttpError(error.status_code, error.message, error.kind)
    if isinstance(error, QueueFullError):
        wait = error.estimate_seconds
        seconds = _RETRY_SECONDS if wait is None else max(1, round(wait))
        return HttpError(429, str(error), "rate_limit_error", retry_after=seconds)
    if isinstance(error, PromptTooLongError):
        return HttpError(400, str(error), "context_length_exceeded")
    if isinstance(error, InvalidRequestError | PromptEncodingError):
        return HttpError(400, str(error), "invalid_request_error")
    if isinstance(error, EngineClosedError):
        return HttpError(503, str(error), "overloaded_error", retry_after=_RETRY_SECONDS)
    if isinstance(error, SlowReaderError):
        return HttpError(408, str(error), "request_timeout")
    if isinstance(error, EngineError | RequestError):
        return HttpError(500, str(error), "server_error")
    _logger.error("a request failed", exc_info=error)
    return HttpError(500, "internal error", "server_error")


def error_body(error: HttpError) -> bytes:
    """OpenAI's shape, with the one field that makes it Anthropic's too."""
    details = {"message": error.message, "type": error.kind, "param": None, "code": error.kind}
    return msgspec.json.encode({"type": "error", "error": details})
