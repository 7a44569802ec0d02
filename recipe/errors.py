"""What can be wrong with a request, as the official codec reports it.

Two stages, two errors. The *shape* of a body (not JSON, a missing field, a wrong type) is found while
decoding; the official codec raises a bare `ValueError` there and leaves the HTTP answer to its server, ours
carries the same answer as the second stage. The *meaning* of a body is checked by conversion, and the text of
those messages is part of the protocol: clients match on it.
"""

from __future__ import annotations

import msgspec


class RecipeError(Exception):
    """Base of everything this package raises on purpose."""


class ConversionError(RecipeError):
    """A request that cannot be answered: an HTTP status and a body in OpenAI's error shape."""

    def __init__(
        self,
        message: str,
        *,
        status_code: int = 400,
        kind: str = "invalid_request_error",
        parameter: str | None = None,
    ) -> None:
        """`parameter` is the request field at fault; the official codec never names one."""
        super().__init__(message)
        self.message, self.status_code, self.kind, self.parameter = message, status_code, kind, parameter

    @property
    def body(self) -> str:
        """Compact JSON, the same shape for all three protocols."""
        error = {"message": self.message, "type": self.kind, "param": self.parameter, "code": self.kind}
        return msgspec.json.encode({"error": error}).decode()


class InvalidBodyError(ConversionError):
    """A body of the wrong shape: not JSON, a field missing or of another type."""


class UnsupportedFeatureError(ConversionError):
    """A request for something this server would have to enforce and cannot: refused instead of ignored."""


class PromptEncodingError(RecipeError):
    """A prompt needs a special token that the vocabulary lacks."""

    def __init__(self, spelling: str) -> None:
        super().__init__(f"special token {spelling!r} is not in the vocabulary")
        self.spelling = spelling
