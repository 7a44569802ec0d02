"""Whether a value is a JSON Schema (draft 2020-12): the meta-schema's rules, with their usual messages.

The meta-schema is small and fixed, so it is a table here: keyword to the check of its value, in the order of
the vocabularies, the first fault found depth first. References are resolved afterwards, inside the document
only. Rejected: a general validator run on the meta-schema, a dependency of megabytes for a page of rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from ..json_text import compact

_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_DRAFTS = (
    "http://json-schema.org/draft-04/schema", "http://json-schema.org/draft-06/schema",
    "http://json-schema.org/draft-07/schema", "https://json-schema.org/draft/2019-09/schema",
    "https://json-schema.org/draft/2020-12/schema",
)  # fmt: skip


class InvalidSchemaError(ValueError):
    """A value that is not a JSON Schema, or refers to nothing."""


def check_schema(schema: Any) -> None:
    """Raises `InvalidSchemaError` with the first fault."""
    _check_dialect(schema)
    _schema(schema)
    _check_references(schema)


def _fail(message: str) -> None:
    raise InvalidSchemaError(message)


def _check_dialect(schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    dialect = schema.get("$schema")
    if isinstance(dialect, str) and dialect.rstrip("#") not in _DRAFTS:
        _fail(
            f"Unknown meta-schema: '{dialect}'. "
            "Custom meta-schemas must be registered in the registry before use"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return _is_number(value) and float(value).is_integer()


_KINDS: dict[str, Callable[[Any], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_integer,
    "number": _is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


def _has_type(value: Any, name: str) -> None:
    if not _KINDS[name](value):
        _fail(f'{compact(value)} is not of type "{name}"')


def _typed(name: str) -> Callable[[Any], None]:
    return lambda value: _has_type(value, name)


def _schema(value: Any) -> None:
    if isinstance(value, bool):
        return
    if not isinstance(value, dict):
        _fail(f'{compact(value)} is not of types "boolean", "object"')
    for keyword, check in _KEYWORDS.items():
        if keyword in value:
            check(value[keyword])


def _schemas(value: Any) -> None:
    _has_type(value, "array")
    _at_least_one(value)
    for item in value:
        _schema(item)


def _schema_map(value: Any) -> None:
    _has_type(value, "object")
    for item in value.values():
        _schema(item)


def _at_least_one(value: list[Any]) -> None:
    if not value:
        _fail("[] has less than 1 item")


def _unique(value: list[Any]) -> None:
    if len({compact(item) for item in value}) < len(value):
        _fail(f"{compact(value)} has non-unique elements")


def _strings(value: Any) -> None:
    _has_type(value, "array")
    _unique(value)
    for item in value:
        _has_type(item, "string")


def _type(value: Any) -> None:
    names = value if isinstance(value, list) else [value]
    is_valid = all(isinstance(name, str) and name in _TYPES for name in names)
    if not is_valid or not names or len(set(names)) < len(names):
        _fail(f"{compact(value)} is not valid under any of the schemas listed in the 'anyOf' keyword")


def _count(value: Any) -> None:
    _has_type(value, "integer")
    if value < 0:
        _fail(f"{compact(value)} is less than the minimum of 0")


def _positive(value: Any) -> None:
    _has_type(value, "number")
    if value <= 0:
        _fail(f"{compact(value)} is less than or equal to the minimum of 0")


def _pattern(value: Any) -> None:
    _has_type(value, "string")
    if not is_regular_expression(value):
        _fail(f'{compact(value)} is not a "regex"')


def _pattern_properties(value: Any) -> None:
    _has_type(value, "object")
    for pattern, item in value.items():
        _schema(item)
        if not is_regular_expression(pattern):
            _fail(f'{compact(item)} is not a "regex"')


def _matches(pattern: str) -> Callable[[Any], None]:
    def check(value: Any) -> None:
        _has_type(value, "string")
        if re.search(pattern, value) is None:
            _fail(f'{compact(value)} does not match "{pattern}"')

    return check


def _string_lists(value: Any) -> None:
    _has_type(value, "object")
    for item in value.values():
        _strings(item)


def _dependencies(value: Any) -> None:
    _has_type(value, "object")
    for item in value.values():
        try:
            (_strings if isinstance(item, list) else _schema)(item)
        except InvalidSchemaError:
            _fail(f"{compact(item)} is not valid under any of the schemas listed in the 'anyOf' keyword")


_string, _boolean, _number, _array = map(_typed, ("string", "boolean", "number", "array"))
_KEYWORDS: dict[str, Callable[[Any], None]] = {
    "$id": _matches("^[^#]*#?$"), "$schema": _string, "$ref": _string,
    "$anchor": _matches("^[A-Za-z_][-A-Za-z0-9._]*$"), "$dynamicRef": _string,
    "$dynamicAnchor": _matches("^[A-Za-z_][-A-Za-z0-9._]*$"), "$vocabulary": _typed("object"),
    "$comment": _string, "$defs": _schema_map,
    "prefixItems": _schemas, "items": _schema, "contains": _schema, "additionalProperties": _schema,
    "properties": _schema_map, "patternProperties": _pattern_properties, "dependentSchemas": _schema_map,
    "propertyNames": _schema, "if": _schema, "then": _schema, "else": _schema,
    "allOf": _schemas, "anyOf": _schemas, "oneOf": _schemas, "not": _schema,
    "unevaluatedItems": _schema, "unevaluatedProperties": _schema,
    "type": _type, "enum": _array, "multipleOf": _positive,
    "maximum": _number, "exclusiveMaximum": _number, "minimum": _number, "exclusiveMinimum": _number,
    "maxLength": _count, "minLength": _count, "pattern": _pattern,
    "maxItems": _count, "minItems": _count, "uniqueItems": _boolean, "maxContains": _count,
    "minContains": _count, "maxProperties": _count, "minProperties": _count,
    "required": _strings, "dependentRequired": _string_lists,
    "title": _string, "description": _string, "deprecated": _boolean, "readOnly": _boolean,
    "writeOnly": _boolean, "examples": _array, "format": _string,
    "contentEncoding": _string, "contentMediaType": _string, "contentSchema": _schema,
    "definitions": _schema_map, "dependencies": _dependencies, "$recursiveRef": _string,
}  # fmt: skip


_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z_])")
_PROPERTY_CLASS = re.compile(r"\\[pP](?:\{\^?[\w =:-]+\}|\w)")
_ONLY_PYTHON = re.compile(r"(?<!\\)(?:\\\\)*\\Z")


def is_regular_expression(pattern: str) -> bool:
    """Whether a pattern compiles. Unicode property classes are taken on trust: Python has none."""
    if _ONLY_PYTHON.search(pattern):
        return False
    translated = _NAMED_GROUP.sub("(?P<", _PROPERTY_CLASS.sub("x", pattern))
    try:
        re.compile(translated)
    except (re.error, RecursionError, OverflowError):
        return False
    return True


def _check_references(schema: Any) -> None:
    anchors = {anchor for anchor, _ in _found(schema, ("$anchor", "$dynamicAnchor"))}
    base = schema.get("$id", "") if isinstance(schema, dict) else ""
    for reference, _ in _found(schema, ("$ref", "$dynamicRef")):
        _check_reference(schema, reference, base, anchors)


def _found(value: Any, keywords: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Values of keywords anywhere in a schema, in document order; data and names of properties are none."""
    if isinstance(value, list):
        for item in value:
            yield from _found(item, keywords)
    if not isinstance(value, dict):
        return
    for keyword, item in value.items():
        if keyword in keywords and isinstance(item, str):
            yield item, value
        elif keyword in _MAPS and isinstance(item, dict):
            for inner in item.values():
                yield from _found(inner, keywords)
        elif keyword in _NESTING:
            yield from _found(item, keywords)


_MAPS = frozenset(keyword for keyword, check in _KEYWORDS.items() if check is _schema_map) | {
    "patternProperties"
}
_NESTING = frozenset(keyword for keyword, check in _KEYWORDS.items() if check in (_schema, _schemas))


def _check_reference(schema: Any, reference: str, base: str, anchors: set[str]) -> None:
    bad = re.search(r"[^!#$%&'()*+,./0-9:;=?@A-Z\[\]_a-z~-]", reference)
    if bad is not None or reference.startswith(":"):
        index = bad.start() if bad is not None else 0
        _fail(f"Invalid URI reference '{reference}': unexpected character at index {index}")
    document, _, fragment = reference.partition("#")
    target = urljoin(base, document)
    if document and target != base:
        if target.rstrip("#") not in _DRAFTS:
            why = f"Retrieval is disabled, cannot fetch {target}"
            if not urlsplit(target).scheme:
                why = "No base URI is available"
            _fail(f"Resource '{target}' is not present in a registry and retrieving it failed: {why}")
        return
    if fragment.startswith("/"):
        _check_pointer(schema, unquote(fragment))
    elif fragment and fragment not in anchors:
        _fail(f"Anchor '{fragment}' does not exist")


def _check_pointer(schema: Any, pointer: str) -> None:
    value = schema
    for token in pointer.split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and token.isdecimal() and int(token) < len(value):
            value = value[int(token)]
        else:
            _fail(f"Pointer '{pointer}' does not exist")
