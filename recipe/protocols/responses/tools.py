"""Tools of a Responses request: functions, namespaces of functions, and the two tools with their own items.

A namespace becomes functions named `namespace::function`; what the model calls by such a name is given back
to the client as the two names it declared.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache, partial
from importlib.resources import files
from typing import Any

import msgspec

from ...conversation import ToolDefinition
from ...errors import ConversionError
from ...json_text import compact
from ..body import free_form
from ..options import ConversionOptions, ModelVersion
from ..tools import Declaration, check_name, checked_parameters
from . import body

APPLY_PATCH = "apply_patch"
TOOL_SEARCH = "tool_search"

NamespaceMap = dict[str, tuple[str, str]]
"""Function name as the model sees it: (namespace, name within it)."""


class DecodedTool(msgspec.Struct):
    """A declared tool; `tool` None is of an unknown type."""

    type: str
    tool: body.Tool | None
    path: str


def decode_tools(tools: Iterable[dict[str, Any]], path: str) -> list[DecodedTool]:
    """Raises `InvalidBodyError`. `path` is of the list, such as `tools`."""
    decoded = []
    for index, tool in enumerate(tools):
        where = f"{path}[{index}]"
        decoded.append(DecodedTool(*body.decode_tool(tool, f"$.{where}"), where))
    return decoded


def check_tools(tools: Iterable[DecodedTool], options: ConversionOptions) -> None:
    """Raises `ConversionError`."""
    for decoded in tools:
        tool = decoded.tool
        if isinstance(tool, body.FunctionTool):
            check_name(tool.name, f"{decoded.path}.name")
        elif isinstance(tool, body.NamespaceTool):
            check_name(tool.name, f"{decoded.path}.name")
            _check_namespace(tool, decoded.path)
        elif isinstance(tool, body.CustomTool) and tool.name != APPLY_PATCH:
            raise ConversionError(f"Unsupported custom tool: '{tool.name}'. Only 'apply_patch' is supported.")
        elif isinstance(tool, body.WebSearchTool) and options.responses_web_search == "reject":
            raise ConversionError("Server tools are not supported")


def _check_namespace(tool: body.NamespaceTool, path: str) -> None:
    seen: set[str] = set()
    for index, inner in enumerate(tool.tools):
        where = f"{path}.tools[{index}]"
        if isinstance(inner, body.NamespaceCustom):
            raise ConversionError(
                "Currently custom tools are not allowed inside a namespace. "
                f"Found custom tool '{inner.name}' in {where}."
            )
        check_name(inner.name, f"{where}.name")
        if inner.name in seen:
            raise ConversionError("Tool names within a namespace must be unique.")
        seen.add(inner.name)


class ToolNames:
    """Names in use, and which of them stand for a function in a namespace."""

    def __init__(self, version: ModelVersion, functions: Iterable[str]) -> None:
        """`functions` are the names the request itself gives."""
        self.version: ModelVersion = version
        self.separator = "__" if version == "v4" else "::"
        self._used = set(functions)
        self.namespaces: NamespaceMap = {}

    def in_namespace(self, namespace: str, name: str) -> str:
        """A clash gets the first free number."""
        base = f"{namespace}{self.separator}{name}"
        chosen, number = base, 0
        while chosen in self._used:
            number += 1
            chosen = f"{base}_{number}"
        self._used.add(chosen)
        self.namespaces[chosen] = (namespace, name)
        return chosen


def definitions(
    tools: Iterable[DecodedTool], names: ToolNames, *, deferred: bool = False
) -> Iterator[Declaration]:
    """What the model is told, in order; defining a tool raises `ConversionError`."""
    for decoded in tools:
        tool = decoded.tool
        if isinstance(tool, body.NamespaceTool):
            for inner in tool.tools:
                if isinstance(inner, body.NamespaceFunction):
                    yield _namespaced(tool, inner, names, decoded.path, deferred)
        elif isinstance(tool, body.FunctionTool):
            yield tool.name, partial(_function, tool.name, tool.description, tool, decoded.path, deferred)
        elif isinstance(tool, body.CustomTool):
            yield APPLY_PATCH, partial(_apply_patch, names.version, deferred)
        elif isinstance(tool, body.ToolSearchTool) and tool.execution == "client":
            search = body.FunctionTool(TOOL_SEARCH, tool.description, tool.parameters)
            yield (
                TOOL_SEARCH,
                partial(_function, TOOL_SEARCH, tool.description, search, decoded.path, deferred),
            )


def _namespaced(
    space: body.NamespaceTool, tool: body.FunctionTool, names: ToolNames, path: str, deferred: bool
) -> Declaration:
    description = tool.description
    if space.description and names.version != "v4":
        description = f"{space.description}\n{tool.description or ''}"
    name = names.in_namespace(space.name, tool.name)
    return name, partial(_function, name, description, tool, path, deferred)


def _apply_patch(version: ModelVersion, deferred: bool) -> ToolDefinition:
    description = apply_patch_description(version)
    return ToolDefinition(APPLY_PATCH, description, dict(_PATCH_PARAMETERS), None, deferred)


def _function(
    name: str, description: str | None, tool: body.FunctionTool, path: str, deferred: bool
) -> ToolDefinition:
    schema = free_form(tool.parameters, f"$.{path}.parameters", 4)
    return ToolDefinition(
        name, description, checked_parameters(name, schema, tool.strict), tool.strict, deferred
    )


def plain(tools: Iterable[DecodedTool]) -> list[dict[str, Any]]:
    """The tools as the protocol prints them. Raises `ConversionError` for a type that is not known."""
    printed: list[dict[str, Any]] = []
    for decoded in tools:
        tool = decoded.tool
        if isinstance(tool, body.NamespaceTool):
            space = {"name": tool.name, "description": tool.description}
            printed += [{**_printed("function", inner), "namespace": space} for inner in tool.tools]
        elif tool is not None:
            printed.append(_printed(decoded.type, tool))
        else:
            raise ConversionError("the enum variant ResponsesTool::Unsupported cannot be serialized")
    return printed


def _printed(kind: str, tool: body.Tool) -> dict[str, Any]:
    return {"type": kind} | msgspec.structs.asdict(tool)


def echoed(tools: Iterable[DecodedTool]) -> list[dict[str, Any]]:
    """The tools as a response repeats them; those of an unknown type are left out."""
    return [
        {"type": decoded.type} | msgspec.to_builtins(decoded.tool)
        for decoded in tools
        if decoded.tool is not None
    ]


def printed_text(tools: Iterable[DecodedTool]) -> str:
    return compact(plain(tools))


_PATCH_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "input": {
            "type": "string",
            "description": "The entire contents of the apply_patch command "
            "(the *** Begin Patch ... *** End Patch envelope).",
        }
    },
    "required": ["input"],
}


@cache
def apply_patch_description(version: ModelVersion) -> str:
    """How to write a patch: the public description of this tool's language, part of the prompt format."""
    text = files(__package__).joinpath("apply_patch.txt").read_text(encoding="utf-8")
    return text.replace("envelope:\n\n", "envelope:\n", 1) if version == "v4" else text
