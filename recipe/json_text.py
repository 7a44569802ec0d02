"""JSON as prompts and arguments spell it.

Prompts embed JSON, and a prompt must be the same bytes as in training, so the printer's habits matter: spaces
after separators, non-ASCII kept, key order kept, numbers as the training renderer printed them. V4.1 prints
floats like Python; V4 prints the shortest digits without a padded exponent (recipe_spec 2.2).

Reading follows the official parser where it differs from Python's: an integer outside 64 bits becomes a
float, `-0` is minus zero, and nesting of 128 or more is refused, which also keeps every recursion in this
package shallow.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from .errors import RecipeError

MAX_DEPTH = 127
_MIN_INTEGER, _MAX_INTEGER = -(2**63), 2**64 - 1


class JsonTextError(RecipeError, ValueError):
    """Text that is not JSON, or JSON outside the limits above."""


_spaced = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode
_compact = json.JSONEncoder(ensure_ascii=False, check_circular=False, separators=(",", ":")).encode


def parse(text: str | bytes) -> Any:
    """The value of a JSON text. Duplicate keys: the last value at the first position."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError, UnicodeError) as error:
        raise JsonTextError(str(error)) from error
    if may_have_negative_zeros(text):
        value = with_negative_zeros(text)
    return normalize(value)


# The literal first, so that the search jumps from one to the next; most are in dates and such.
_NEGATIVE_ZERO = r"-0(?:(?<=[\[:,\s]-0)|(?<=^-0))(?=[\s,\]}]|$)"
_find_in_text = re.compile(_NEGATIVE_ZERO).search
_find_in_bytes = re.compile(_NEGATIVE_ZERO.encode()).search


def may_have_negative_zeros(text: str | bytes) -> bool:
    """Whether there is a `-0` that could be a number: perhaps inside a string, but never missed."""
    found = _find_in_bytes(text) if isinstance(text, bytes) else _find_in_text(text)
    return found is not None


def with_negative_zeros(text: str | bytes) -> Any:
    """Read again a text already known to be JSON, keeping the sign of `-0`, which an integer cannot hold."""
    return json.loads(text, parse_int=lambda digits: -0.0 if digits == "-0" else int(digits))


def normalize(value: Any, depth: int = 0) -> Any:
    """The same value with every integer in range; the very object where nothing had to change.

    Raises `JsonTextError` for too deep nesting and for integers beyond the largest float.
    """
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value
    if kind is int:
        return value if _MIN_INTEGER <= value <= _MAX_INTEGER else _as_float(value)
    if kind is float:
        return value
    if depth >= MAX_DEPTH:
        raise JsonTextError("recursion limit exceeded")
    if kind is list:
        return [normalize(item, depth + 1) for item in value]
    return {key: normalize(item, depth + 1) for key, item in value.items()}


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError as error:
        raise JsonTextError("number out of range") from error


def spaced(value: Any) -> str:
    """JSON with a space after `,` and `:` and Python's floats: the V4.1 form."""
    return _spaced(value)


def compact(value: Any) -> str:
    """JSON without spaces."""
    return _compact(value) if _has_no_float(value) else _print(value, ",", ":")


def spaced_v4(value: Any) -> str:
    """The V4 form: like `spaced`, with floats in shortest notation."""
    return _spaced(value) if _has_no_float(value) else _print(value, ", ", ": ")


def _has_no_float(value: Any) -> bool:
    if isinstance(value, dict):
        return all(_has_no_float(item) for item in value.values())
    if isinstance(value, list):
        return all(_has_no_float(item) for item in value)
    return not isinstance(value, float)


def _print(value: Any, comma: str, colon: str) -> str:
    if isinstance(value, float):
        return shortest_float(value)
    if isinstance(value, list):
        return "[" + comma.join(_print(item, comma, colon) for item in value) + "]"
    if isinstance(value, dict):
        items = (f"{_spaced(key)}{colon}{_print(item, comma, colon)}" for key, item in value.items())
        return "{" + comma.join(items) + "}"
    return _spaced(value)


def shortest_float(value: float) -> str:
    """Python's digits, but positional down to 1e-5 and with an exponent that is not padded: `1e-7`."""
    if not math.isfinite(value):
        return "null"
    mantissa, _, exponent = repr(value).partition("e")
    if exponent == "-05":
        sign = "-" if mantissa.startswith("-") else ""
        return f"{sign}0.0000{mantissa.lstrip('-').replace('.', '')}"
    return f"{mantissa}e{exponent.replace('-0', '-')}" if exponent else mantissa
