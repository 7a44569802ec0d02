"""Calls of an assistant message as DSML markup.

Strings go in raw between the tags, everything else as JSON (recipe_spec 2.3.6). Nothing is escaped: as
characters, a value that spells a closing tag is ambiguous; as token ids it is not, because only the tags
written here hold the DSML token.
"""

from __future__ import annotations

from typing import Any

from ..json_text import JsonTextError, parse
from .rendered import PromptWriter
from .tool_texts import PrintJson, TagNames


def call_arguments(arguments: str) -> dict[str, Any]:
    """A call's arguments by name; text that is not a JSON object becomes one argument named `arguments`."""
    try:
        value = parse(arguments)
    except JsonTextError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}


def open_tag(writer: PromptWriter, name: str, attributes: str = "") -> None:
    writer.around_special("<", writer.tokens.dsml, f"{name}{attributes}>")


def close_tag(writer: PromptWriter, name: str) -> None:
    writer.around_special("</", writer.tokens.dsml, f"{name}>")


def write_parameter(
    writer: PromptWriter, tags: TagNames, name: str, value: Any, print_json: PrintJson
) -> None:
    is_string = isinstance(value, str)
    open_tag(writer, tags.parameter, f' name="{name}" string="{"true" if is_string else "false"}"')
    writer.text(value if is_string else print_json(value))
    close_tag(writer, tags.parameter)
