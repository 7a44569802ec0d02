"""Frozen structs of arrays and numbers as lists of arrays, and back, so that plans can cross a process.

Generic over the structs of `runner.py`: arrays keep their place in a list, numbers and the nesting go into
one small header. Rejected: pickle, which copies every array into one more byte string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
S = TypeVar("S", bound=msgspec.Struct)
Nested = Mapping[str, type[msgspec.Struct]]

_ARRAY = "a"  # a field that is the array of this index is written {"a": index}


def encode(value: msgspec.Struct) -> list[Array]:
    """The header, then the arrays in field order, depth first. Fields are arrays, numbers, None, structs."""
    arrays: list[Array] = []
    header = msgspec.msgpack.encode(_plain(value, arrays))
    return [np.frombuffer(header, dtype=np.uint8), *arrays]


def _plain(value: msgspec.Struct, arrays: list[Array]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name in value.__struct_fields__:
        field = getattr(value, name)
        if isinstance(field, np.ndarray):
            fields[name] = {_ARRAY: len(arrays)}
            arrays.append(field)
        elif isinstance(field, msgspec.Struct):
            fields[name] = _plain(field, arrays)
        else:
            fields[name] = field
    return fields


def decode(parts: Sequence[Array], kind: type[S], nested: Nested) -> S:
    """The struct that `encode` took apart; `nested` names the class of every field that is a struct."""
    plain = msgspec.msgpack.decode(parts[0].tobytes())
    return _built(plain, parts[1:], kind, nested)


def _built(plain: dict[str, Any], arrays: Sequence[Array], kind: type[S], nested: Nested) -> S:
    fields: dict[str, Any] = {}
    for name, field in plain.items():
        if not isinstance(field, dict):
            fields[name] = field
        elif name in nested:
            fields[name] = _built(field, arrays, nested[name], nested)
        else:
            fields[name] = arrays[field[_ARRAY]]
    return kind(**fields)
