"""Schemas of `strict: true`: rebuilt from the small grammar that strict decoding supports.

What is rebuilt is what the model is held to, so an unknown keyword vanishes instead of pretending to hold.
Every object lists all of its properties as required and admits no others. Definitions are kept, since `$ref`
may point at them; the official codec drops them and leaves the references dangling (DIFFERENCES.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ConversionError
from ..json_text import shortest_float

_SCALARS = ("string", "number", "integer", "boolean", "null")
_KINDS = ("object", "string", "number", "integer", "boolean", "array", "null")
_FORMATS = ("email", "hostname", "ipv4", "ipv6", "uuid")
_BOUNDS = ("const", "default", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_EMPTY_OBJECT: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
    "required": [],
}

Schema = dict[str, Any]


class _OutsideGrammarError(ValueError):
    """A schema strict decoding does not support."""


def strict_parameters(schema: Any) -> Schema:
    """The strict form of a function's parameters; none at all is an object without properties."""
    if schema is None:
        return dict(_EMPTY_OBJECT)
    return _parse_top(schema, "Invalid tool parameters schema : ", "function parameters schema", True)


def strict_format(schema: Any) -> Schema:
    """The strict form of a response format's schema."""
    return _parse_top(schema, "Invalid json schema: ", "json schema", False)


def _parse_top(schema: Any, prefix: str, name: str, may_be_empty: bool) -> Schema:
    """`may_be_empty`: an object without properties is allowed at the top (it never is further down)."""
    try:
        if may_be_empty and isinstance(schema, dict) and schema.get("type") == "object":
            return {"type": "object"} | _object_fields(schema, may_be_empty=True)
        parsed = _parse(schema)
    except _OutsideGrammarError as error:
        raise ConversionError(f"{prefix}{error}") from error
    if parsed.get("type") != "object":
        raise ConversionError(f"The top level of the {name} must be an object.")
    return parsed


def _invalid(problem: str) -> _OutsideGrammarError:
    return _OutsideGrammarError(problem)


def _wrong_type(value: Any, expected: str) -> _OutsideGrammarError:
    return _invalid(f"invalid type: {_described(value)}, expected {expected}")


def _described(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"boolean `{str(value).lower()}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{shortest_float(value)}`"
    if isinstance(value, str):
        return f'string "{value}"'
    return "sequence" if isinstance(value, list) else "map"


def _variants(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _parse(value: Any) -> Schema:
    if isinstance(value, dict):
        if "type" in value:
            return _parse_typed(value)
        if "anyOf" in value:
            return _parse_any_of(value)
        if "$ref" in value:
            return {"$ref": _reference(value["$ref"])}
    raise _invalid("one of `type`, `anyOf`, `$ref` field is required")


def _parse_typed(value: Schema) -> Schema:
    kind = value["type"]
    if isinstance(kind, list):
        return _parse_union(value, kind)
    if not isinstance(kind, str):
        raise _wrong_type(kind, "variant identifier")
    if kind not in _KINDS:
        raise _invalid(f"unknown variant `{kind}`, expected one of {_variants(_KINDS)}")
    return {"type": kind} | _FIELDS[kind](value)


def _parse_union(value: Schema, kinds: list[Any]) -> Schema:
    for kind in kinds:
        if not isinstance(kind, str):
            raise _invalid(f"field `type`: invalid type: {_described(kind)}, expected variant identifier")
        if kind not in _SCALARS:
            raise _invalid(f"field `type`: unknown variant `{kind}`, expected one of {_variants(_SCALARS)}")
    return {"type": kinds} | _described_fields(value)


def _parse_any_of(value: Schema) -> Schema:
    branches = value["anyOf"]
    if not isinstance(branches, list):
        raise _invalid(f"field `anyOf`: invalid type: {_described(branches)}, expected a sequence")
    try:
        return {"anyOf": [_parse_branch(branch) for branch in branches]} | _described_fields(value)
    except _OutsideGrammarError as error:
        raise _invalid(f"field `anyOf`: {error}") from error


def _parse_branch(branch: Any) -> Schema:
    if not isinstance(branch, dict):
        raise _wrong_type(branch, "a typed schema")
    if "type" not in branch:
        raise _invalid("missing field `type`")
    if not isinstance(branch["type"], str):
        raise _wrong_type(branch["type"], "variant identifier")
    return _parse(branch)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong_type(value, "a string")
    return value


def _reference(value: Any) -> str:
    if not isinstance(value, str):
        raise _invalid(f"field `$ref`: invalid type: {_described(value)}, expected a string")
    return value


def _present(value: Schema, key: str, parse: Callable[[Any], Any]) -> Schema:
    return {} if value.get(key) is None else {key: parse(value[key])}


def _described_fields(value: Schema) -> Schema:
    return _present(value, "description", _string)


def _string_fields(value: Schema) -> Schema:
    return (
        _described_fields(value)
        | _present(value, "pattern", _string)
        | _present(value, "format", _format)
        | _present(value, "enum", _strings)
    )


def _format(value: Any) -> str:
    if _string(value) not in _FORMATS:
        raise _invalid(f"unknown variant `{value}`, expected one of {_variants(_FORMATS)}")
    return str(value)


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list):
        raise _wrong_type(value, "a sequence")
    return [_string(item) for item in value]


def _number_fields(value: Schema) -> Schema:
    fields = _described_fields(value)
    for key in _BOUNDS:
        fields |= _present(value, key, _number)
    return fields


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(value, "a JSON number")
    return value


def _integer_fields(value: Schema) -> Schema:
    fields = _described_fields(value)
    for key in _BOUNDS:
        fields |= _present(value, key, _integer)
    return fields


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _wrong_type(value, "i64")
    if not -(2**63) <= value < 2**63:
        raise _invalid(f"invalid value: integer `{value}`, expected i64")
    return value


def _array_fields(value: Schema) -> Schema:
    if "items" not in value:
        raise _invalid("missing field `items`")
    return {"items": _parse(value["items"])} | _described_fields(value)


def _schema_map(value: Any) -> Schema:
    if not isinstance(value, dict):
        raise _wrong_type(value, "a map")
    return {name: _parse(inner) for name, inner in value.items()}


def _object_fields(value: Schema, may_be_empty: bool = False) -> Schema:
    properties = _schema_map(value["properties"]) if value.get("properties") is not None else {}
    additional = value.get("additionalProperties")
    if additional is not None and not isinstance(additional, bool):
        raise _wrong_type(additional, "a boolean")
    description = _described_fields(value)
    definitions: Schema = {}
    for key in _DEFINITIONS:
        definitions |= _present(value, key, _schema_map)
    required = _strings(value["required"]) if value.get("required") is not None else None
    if additional:
        raise ConversionError("additionalProperties should not be true")
    if not properties and not may_be_empty:
        raise ConversionError("An object with no properties is not allowed.")
    if required is not None:
        _check_required(required, properties)
    return (
        {"properties": properties, "additionalProperties": False, "required": list(properties)}
        | description
        | definitions
    )


def _check_required(required: list[str], properties: Schema) -> None:
    seen: set[str] = set()
    for name in required:
        if name not in properties:
            raise ConversionError(f"Required property '{name}' not found in object")
        if name in seen:
            raise ConversionError(f"Duplicate required property '{name}'")
        seen.add(name)
    if len(seen) < len(properties):
        raise ConversionError("Required properties must match all properties in the object")


_DEFINITIONS = ("$def", "$defs", "definitions")
_FIELDS: dict[str, Callable[[Schema], Schema]] = {
    "object": _object_fields,
    "string": _string_fields,
    "number": _number_fields,
    "integer": _integer_fields,
    "boolean": _described_fields,
    "array": _array_fields,
    "null": _described_fields,
}
