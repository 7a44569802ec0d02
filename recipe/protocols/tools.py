"""Tool definitions: names, schemas, choice. The rules all protocols share (recipe_spec 3.1)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..conversation import ToolChoice, ToolDefinition
from ..errors import ConversionError
from ..json_text import compact
from .json_schema import InvalidSchemaError, check_schema
from .request import OutputConstraint
from .strict_schema import strict_parameters

_NAME = re.compile(r"[a-zA-Z0-9_-]+")
_MAX_NAME = 128


def check_name(name: str, path: str) -> None:
    """Raises `ConversionError` for a name a model could not write back."""
    if not name:
        raise ConversionError(
            f"Invalid '{path}': empty string. Expected a string with minimum length 1, "
            "but got an empty string instead."
        )
    length = len(name.encode())
    if length > _MAX_NAME:
        raise ConversionError(
            f"Invalid '{path}': string too long. Expected a string with maximum length {_MAX_NAME}, "
            f"but got a string with length {length} instead."
        )
    if _NAME.fullmatch(name) is None:
        raise ConversionError(
            f"Invalid '{path}': string does not match pattern. "
            "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        )


Declaration = tuple[str, Callable[[], ToolDefinition]]
"""A tool's name, and what checks its schema and makes its definition."""


def unique(declarations: Iterable[Declaration]) -> tuple[ToolDefinition, ...]:
    """The tools, the name of each compared with those before it, then its schema checked."""
    by_name: dict[str, ToolDefinition] = {}
    for name, define in declarations:
        if name in by_name:
            raise ConversionError("Tool names must be unique.")
        by_name[name] = define()
    return tuple(by_name.values())


def checked_parameters(name: str, parameters: Any, strict: bool | None) -> Any:
    """A function's schema as the prompt shows it. Raises `ConversionError`."""
    if strict:
        return strict_parameters(parameters)
    return {} if parameters is None else checked_schema(name, parameters)


def checked_schema(name: str, schema: Any) -> Any:
    """A schema that must describe an object. Raises `ConversionError`."""
    try:
        check_schema(schema)
    except InvalidSchemaError as error:
        raise ConversionError(f"Invalid schema for function '{name}': {error}") from error
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind != "object":
        raise ConversionError(
            f"Invalid schema for function '{name}': schema must be a JSON Schema of 'type: \"object\"', "
            f"got 'type: {compact(kind)}'."
        )
    return schema


def check_not_mixed(tools: Sequence[ToolDefinition]) -> None:
    strict = [bool(tool.strict) for tool in tools]
    if any(strict) and not all(strict):
        raise ConversionError("Cannot use strict tool with non-strict tool in the same request")


def only_named(tools: Sequence[ToolDefinition], name: str) -> tuple[ToolDefinition, ...]:
    """The tool a request insists on."""
    chosen = tuple(tool for tool in tools if tool.name == name)
    if not chosen:
        raise ConversionError(
            f"Invalid value for 'tool_call': no function named '{name}' was specified "
            "in the 'tools' parameter."
        )
    return chosen


def check_choice(choice: ToolChoice, thinking: bool) -> None:
    if choice == "required" and thinking:
        raise ConversionError("Thinking mode does not support this tool_choice")


def tool_constraint(tools: Sequence[ToolDefinition], choice: ToolChoice) -> OutputConstraint | None:
    """What would hold the model to the schemas of its tools."""
    if not tools:
        return None
    return OutputConstraint(
        "tool_call_required" if choice == "required" else "tool_call",
        compact([_constraint_entry(tool) for tool in tools]),
        is_required=any(tool.strict for tool in tools),
    )


def _constraint_entry(tool: ToolDefinition) -> dict[str, Any]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }
    entry: dict[str, Any] = {"type": "function", "function": function}
    return entry | {"defer_loading": True} if tool.defer_loading else entry
