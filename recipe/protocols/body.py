"""Request bodies: bytes to typed structs, with every complaint as one kind of error."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from ..errors import InvalidBodyError
from ..json_text import JsonTextError, may_have_negative_zeros, normalize, with_negative_zeros

U8 = Annotated[int, Meta(ge=0, le=2**8 - 1)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U64 = Annotated[int, Meta(ge=0)]  # the upper bound: `check_u64`

Body = TypeVar("Body")


class BodyDecoder:
    """Decodes one type of body. Unknown fields are ignored, as the official codec does."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind
        self._decoder = msgspec.json.Decoder(kind)

    def decode(self, body: bytes | str) -> Any:
        """Raises `InvalidBodyError`, which says where in the body the problem is."""
        try:
            decoded = self._decoder.decode(body)
            if may_have_negative_zeros(body):
                return msgspec.convert(with_negative_zeros(body), self._kind)
            return decoded
        except msgspec.ValidationError as error:
            raise InvalidBodyError(f"invalid request body: {error}") from error
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise InvalidBodyError(f"invalid JSON request: {error}") from error


def check_u64(value: int | None, where: str) -> None:
    """The bound that the decoder cannot check. Raises `InvalidBodyError`."""
    if value is not None and value >= 2**64:
        raise InvalidBodyError(f"invalid request body: Expected an integer below 2^64 - at `{where}`")


def free_form(value: Any, where: str, depth: int) -> Any:
    """A part of a body that may be any JSON (a schema, a tool's input), `depth` levels inside the body.

    Raises `InvalidBodyError` where the official parser would: nested too deeply, or a number too large.
    """
    try:
        return normalize(value, depth)
    except JsonTextError as error:
        raise InvalidBodyError(f"invalid JSON request: {error} - at `{where}`") from error
