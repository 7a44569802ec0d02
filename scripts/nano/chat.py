"""Chat prompts in the V4.1 rendered form, as plain text with special tokens spelled out.

The engine's own renderer belongs to the serving side; training only needs the shape of the result, so this
file spells it directly (model_spec 4.8 names the tokens). Text written by "users" here never contains a
special token.
"""

from __future__ import annotations

import json
from typing import Any

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
PAD = "<｜▁pad▁｜>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
DSML = "｜DSML｜"

_TOOLS_HEAD = f"""## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<{DSML} calls>" block like the following:

<{DSML} calls>
<{DSML} invoke name="$TOOL_NAME">
<{DSML} parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML} parameter>
...
</{DSML} invoke>
<{DSML} invoke name="$TOOL_NAME2">
...
</{DSML} invoke>
</{DSML} calls>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {THINK}), you MUST output your complete reasoning inside {THINK}...{END_THINK} BEFORE any tool calls or final response.

Otherwise, output directly after {END_THINK} with tool calls or final response.

### Available Tool Schemas

"""  # noqa: E501
_TOOLS_TAIL = (
    "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
)
_EFFORT = "Reasoning Effort: {level} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
_FORMAT = "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"


def tools_block(tools: list[dict[str, Any]]) -> str:
    lines = [json.dumps(t, ensure_ascii=False) for t in tools]
    return _TOOLS_HEAD + "\n".join(lines) + _TOOLS_TAIL


def calls_block(calls: list[tuple[str, dict[str, Any]]]) -> str:
    parts = [f"\n\n<{DSML} calls>\n"]
    for name, arguments in calls:
        parameters = [_parameter(key, value) for key, value in arguments.items()]
        parts.append(f'<{DSML} invoke name="{name}">\n' + "\n".join(parameters) + f"\n</{DSML} invoke>\n")
    return "".join(parts) + f"</{DSML} calls>"


def _parameter(key: str, value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    is_string = "true" if isinstance(value, str) else "false"
    return f'<{DSML} parameter name="{key}" string="{is_string}">{text}</{DSML} parameter>'


def conversation(
    turns: list[tuple[str, str]],
    *,
    system: str = "",
    tools: list[dict[str, Any]] | None = None,
    schema: Any = None,
    effort: int | None = None,
    reasoning: str = "",
) -> str:
    """Render (user, assistant) turns without BOS; the last answer carries `reasoning` if `effort` is set."""
    extra = ("\n\n" + tools_block(tools) if tools else "") + (
        _FORMAT + json.dumps(schema, ensure_ascii=False) if schema is not None else ""
    )
    head = ""
    if effort is not None:
        head = SYSTEM + _EFFORT.format(level=effort) + system + extra
    elif system or extra:
        head = SYSTEM + system + extra
    parts = [head]
    for index, (user, answer) in enumerate(turns):
        last = index == len(turns) - 1
        thought = f"{THINK}{reasoning}{END_THINK}" if effort is not None and last else END_THINK
        parts.append(f"{USER}{user}{ASSISTANT}{thought}{answer}{EOS}")
    return "".join(parts)
