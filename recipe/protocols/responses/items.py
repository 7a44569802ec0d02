"""Input items of a Responses request, each on its own: what it says, and what is wrong with it.

How items belong together is the business of `turns.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ...conversation import Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from ...errors import ConversionError
from ...json_text import compact
from ..body import free_form
from ..image_parts import ImagePartError, MessageContent, image_source
from ..options import ConversionOptions, ModelVersion
from . import body
from .tools import TOOL_SEARCH, DecodedTool, ToolNames, check_tools, decode_tools, printed_text

_FORMATS = (
    "Please make sure your image is valid and has one of the following formats: webp, png, jpeg, and gif."
)


class Said(msgspec.Struct):
    """A whole message of somebody else than the assistant."""

    message: Message


class AssistantText(msgspec.Struct):
    """`fault` is what is wrong with it, to be said when it is known that no call waits for an output."""

    text: str
    fault: ConversionError | None = None


class Reasoned(msgspec.Struct):
    text: str


class Called(msgspec.Struct):
    call: ToolCall


class Answered(msgspec.Struct):
    """The result of a call, and the tools it brought up if it was a tool search.

    `fault` is what is wrong with it, to be said when it is known to answer a call.
    """

    result: ToolMessage
    found: list[DecodedTool] | None = None
    fault: ConversionError | None = None


Piece = Said | AssistantText | Reasoned | Called | Answered


class ItemReader:
    """Reads the items of one request. Every method raises `ConversionError`."""

    def __init__(self, options: ConversionOptions, version: ModelVersion, names: ToolNames) -> None:
        self._options, self._version, self._names = options, version, names

    def check_found_tools(self, items: Sequence[tuple[int, body.Item]]) -> None:
        """Names of tools that searches brought up are checked before anything else of the items."""
        for index, item in items:
            if isinstance(item, body.ToolSearchOutput) and self._version != "v4":
                check_tools(decode_tools(item.tools, f"input[{index}].tools"), self._options)

    def read(self, item: body.Item, index: int) -> Piece | None:
        """What an item says; None for one that the model version knows nothing of."""
        if isinstance(item, body.MessageItem):
            return self._message(item, index)
        if isinstance(item, body.ReasoningItem):
            return Reasoned("\n".join(part.text for part in item.content or ()))
        if self._version == "v4" and isinstance(item, body.ToolSearchCall | body.ToolSearchOutput):
            return None
        if isinstance(item, body.FunctionCall | body.CustomToolCall | body.ToolSearchCall):
            _check_named(item.call_id, index)
            return Called(self._tool_call(item, index))
        return self._output(item, index)

    def _message(self, item: body.MessageItem, index: int) -> Piece:
        if item.role == "assistant":
            try:
                content = self._content(item.content, index, "content", is_assistant=True)
            except ConversionError as error:
                return AssistantText("", error)
            return AssistantText(content.content)
        content = self._content(item.content, index, "content")
        images, placeholders = tuple(content.images), tuple(content.placeholders)
        if item.role == "user" or (item.role == "developer" and self._version == "v4"):
            return Said(UserMessage(content.content, images=images, placeholders=placeholders))
        return Said(SystemMessage(content.content, images=images, placeholders=placeholders))

    def _tool_call(
        self, item: body.FunctionCall | body.CustomToolCall | body.ToolSearchCall, index: int
    ) -> ToolCall:
        if isinstance(item, body.CustomToolCall):
            return ToolCall(item.call_id, item.name, compact({"input": item.input}))
        if isinstance(item, body.ToolSearchCall):
            arguments = free_form(item.arguments, f"$.input[{index}].arguments", 3)
            return ToolCall(item.call_id, TOOL_SEARCH, compact(arguments))
        name = item.name
        if item.namespace is not None:
            name = f"{item.namespace}{self._names.separator}{item.name}"
        return ToolCall(item.call_id, name, item.arguments)

    def _output(
        self, item: body.FunctionCallOutput | body.CustomToolCallOutput | body.ToolSearchOutput, index: int
    ) -> Answered:
        if item.call_id is not None:
            _check_named(item.call_id, index)
        if isinstance(item, body.ToolSearchOutput):
            return self._found_tools(item, index)
        content = self._content(item.output or "", index, "output")
        images, placeholders = tuple(content.images), tuple(content.placeholders)
        return Answered(ToolMessage(content.content, item.call_id, images=images, placeholders=placeholders))

    def _found_tools(self, item: body.ToolSearchOutput, index: int) -> Answered:
        tools = decode_tools(item.tools, f"input[{index}].tools")
        try:
            return Answered(ToolMessage(printed_text(tools), item.call_id), tools)
        except ConversionError as error:
            fault = ConversionError(f"input[{index}]: {error.message}")
            return Answered(ToolMessage("", item.call_id), fault=fault)

    # Contents.

    def _content(
        self, content: str | Sequence[body.Part], index: int, field: str, *, is_assistant: bool = False
    ) -> MessageContent:
        converted = MessageContent(self._options.special_tokens)
        if isinstance(content, str):
            converted.text(content)
            return converted
        for number, part in enumerate(content):
            if isinstance(part, body.InputImage):
                self._image(converted, part, f"input[{index}]", f"{field}[{number}]", is_assistant)
            elif isinstance(part, body.InputFile):
                converted.text("[Unsupported Document]")
            else:
                converted.text(part.text)
        return converted

    def _image(
        self, content: MessageContent, part: body.InputImage, path: str, place: str, is_assistant: bool
    ) -> None:
        if self._version == "v4":
            content.text("[Unsupported Image]")
            return
        where = f"{path}.{place}"
        if part.image_url and part.file_id is not None:
            raise ConversionError(f"{where}: input_image cannot have both image_url and file_id")
        if part.file_id is not None:
            raise ConversionError(
                f"{where}: file_id is not supported. Pass the image as a base64 data url instead."
            )
        if not part.image_url:
            raise ConversionError(f"{where}: input_image must have image_url or file_id")
        if is_assistant:
            raise ConversionError(f"{path}: Image in assistant message is unsupported")
        try:
            content.image(image_source(part.image_url, part.detail or "high", path))
        except ImagePartError as error:
            raise ConversionError(f"{path}: {_problem(error.problem)}") from error


def _check_named(call_id: str, index: int) -> None:
    if not call_id:
        raise ConversionError(
            f"Invalid 'input[{index}].call_id': empty string. Expected a string with minimum length 1, "
            "but got an empty string instead."
        )


def _problem(problem: str) -> str:
    if problem == ImagePartError.TYPE:
        return f"You have uploaded an unsupported image. {_FORMATS}"
    return "Invalid base64 data" if problem == ImagePartError.BASE64 else "Unsupported image_url format"
