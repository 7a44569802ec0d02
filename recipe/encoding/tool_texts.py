"""The parts of a prompt that both versions share: tool instructions, tool schemas, the response format.

The wording is the format the model was trained on, hence data, not prose of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..conversation import ToolDefinition
from .rendered import PromptWriter

PrintJson = Callable[[Any], str]

SCHEMA_FORMAT = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"

_INSTRUCTIONS = """\
## Tools

You have access to a set of tools to help answer the user's question. \
You can invoke tools by writing a "<{dsml}@calls>" block like the following:

<{dsml}@calls>
<{dsml}@invoke name="$TOOL_NAME">
<{dsml}@parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{dsml}@parameter>
...
</{dsml}@invoke>
<{dsml}@invoke name="$TOOL_NAME2">
...
</{dsml}@invoke>
</{dsml}@calls>

String parameters should be specified as is and set `string="true"`. \
For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and \
set `string="false"`.

If thinking_mode is enabled (triggered by {thinking_start}), you MUST output your complete reasoning inside \
{thinking_start}...{thinking_end} BEFORE any tool calls or final response.

Otherwise, output directly after {thinking_end} with tool calls or final response.

### Available Tool Schemas

"""
_CLOSING = (
    "\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
)


class TagNames:
    """What stands behind the DSML token in a tag. V4.1 has a space there, V4 has not."""

    def __init__(self, calls: str, invoke: str, parameter: str, *, ends_empty_list: bool) -> None:
        """`ends_empty_list`: a list of schemas without any (all are deferred) still ends its line."""
        self.calls, self.invoke, self.parameter = calls, invoke, parameter
        self.ends_empty_list = ends_empty_list
        self.instructions = (
            _INSTRUCTIONS.replace("@calls", calls).replace("@invoke", invoke).replace("@parameter", parameter)
        )


V41_TAGS = TagNames(" calls", " invoke", " parameter", ends_empty_list=True)
V4_TAGS = TagNames("tool_calls", "invoke", "parameter", ends_empty_list=False)


def write_tools_block(
    writer: PromptWriter, tags: TagNames, tools: Iterable[ToolDefinition], print_json: PrintJson
) -> None:
    """How to call tools, and the schemas of those that are not deferred."""
    writer.template(tags.instructions)
    lines = tool_lines((tool for tool in tools if not tool.defer_loading), print_json)
    writer.text(lines, "\n" if lines or tags.ends_empty_list else "", _CLOSING)


def tool_lines(tools: Iterable[ToolDefinition], print_json: PrintJson) -> str:
    return "\n".join(_tool_line(tool, print_json) for tool in tools)


def _tool_line(tool: ToolDefinition, print_json: PrintJson) -> str:
    """One tool as the model sees it; `strict` is not its business."""
    description = "" if tool.description is None else tool.description
    return print_json({"name": tool.name, "description": description, "parameters": tool.parameters})
