"""Messages of a Messages request: blocks to messages, and the pairing of tool uses with results."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Collection, Sequence

from ...conversation import (
    AssistantMessage,
    DataUrlImage,
    ImageSource,
    Message,
    SystemMessage,
    ToolCall,
    ToolDefinition,
    ToolMessage,
    UrlImage,
    UserMessage,
)
from ...errors import ConversionError
from ...json_text import spaced_v4
from ..body import free_form
from ..image_parts import MessageContent
from ..options import ConversionOptions, ModelVersion
from . import body

_EXTERNAL = re.compile(r"https?:", re.IGNORECASE)
_INPUT_DEPTH = 6  # of a tool use's input inside the body


class MessageConverter:
    """Converts the messages of one request.

    `tools` are those a reference may name, `usable` those of them that the tool choice leaves: a reference
    adds no others.
    """

    def __init__(
        self,
        options: ConversionOptions,
        version: ModelVersion,
        thinking: bool,
        tools: dict[str, ToolDefinition],
        usable: Collection[str],
    ) -> None:
        self._options, self._version, self._thinking = options, version, thinking
        self._tools, self._usable = tools, usable
        self._pending: dict[str, bool] = {}  # tool uses of the message before; whether each has its result
        self.converted: list[Message] = []

    def convert(self, messages: Sequence[body.Message]) -> tuple[Message, ...]:
        """Raises `ConversionError`."""
        for index, message in enumerate(messages):
            if message.role != "system" and message.content == []:
                raise ConversionError(f"messages.{index}: all messages must have non-empty content")
            content = message.content
            blocks = [body.Text(content)] if isinstance(content, str) else content
            if message.role == "user":
                self._user(blocks, index)
                continue
            if self._pending:
                raise self._unanswered(f"messages.{index}: ")
            if message.role == "assistant":
                self._assistant(blocks, index)
            else:
                self._system(blocks, index)
        if self._pending:
            raise self._unanswered(f"messages.{len(messages) - 1}:")
        self._check_reasoning()
        return tuple(_with_reasoning(m, self._thinking) for m in self.converted)

    def _unanswered(self, where: str) -> ConversionError:
        ids = ", ".join(sorted(call_id for call_id, answered in self._pending.items() if not answered))
        return _without_result(where, ids)

    # Roles.

    def _user(self, blocks: Sequence[body.Block], index: int) -> None:
        added: list[ToolDefinition] = []
        for position, block in enumerate(blocks):
            if isinstance(block, body.ToolResult):
                self._tool_result(block, index, position, added)
                continue
            _check_place(block, "user", index)
            if self._pending and not all(self._pending.values()):
                raise self._unanswered(f"messages.{index}: ")
            content = MessageContent(self._options.special_tokens)
            path = f"messages.{index}.content[{position}]"
            self._visible(content, block, path, path)
            self.converted.append(_user_message(content))
        if not all(self._pending.values()):
            raise self._unanswered(f"messages.{index - 1}:")
        self._pending = {}
        added = self._shown(added)
        if added and self._version != "v4":
            self.converted.append(SystemMessage("", tools=tuple(added)))

    def _tool_result(
        self, block: body.ToolResult, index: int, position: int, added: list[ToolDefinition]
    ) -> None:
        answered = self._pending.get(block.tool_use_id)
        if answered is None:
            raise ConversionError(
                f"unexpected `messages.{index}.content.{position}: tool_use_id` found in `tool_result` "
                f"blocks: {block.tool_use_id}. Each `tool_result` block must have a corresponding `tool_use` "
                "block in the previous message."
            )
        if answered:
            raise ConversionError(
                f"messages.{index}.content.{position}: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {block.tool_use_id}"
            )
        self._pending[block.tool_use_id] = True
        content = MessageContent(self._options.special_tokens)
        path = f"messages.{index}.content.{position}"
        parts = block.content if isinstance(block.content, list) else [body.Text(block.content or "")]
        added += [
            self._referenced(part.tool_name, path) for part in parts if isinstance(part, body.ToolReference)
        ]
        for number, part in enumerate(parts):
            if isinstance(part, body.ToolReference):
                content.text(part.tool_name)
            else:
                where = f"{path}.tool_result"
                self._visible(content, part, where, f"{where}.content[{number}]")
        self.converted.append(
            ToolMessage(
                content.content,
                block.tool_use_id,
                images=tuple(content.images),
                placeholders=tuple(content.placeholders),
            )
        )

    def _shown(self, tools: Sequence[ToolDefinition]) -> list[ToolDefinition]:
        return [tool for tool in tools if tool.name in self._usable]

    def _referenced(self, name: str, path: str) -> ToolDefinition:
        tool = self._tools.get(name)
        if tool is None:
            raise ConversionError(f"{path}: tool reference '{name}' not found in available tools")
        return tool

    def _assistant(self, blocks: Sequence[body.Block], index: int) -> None:
        content = MessageContent(self._options.special_tokens)
        reasoning: list[str] = []
        calls: list[ToolCall] = []
        for position, block in enumerate(blocks):
            _check_place(block, "assistant", index)
            if isinstance(block, body.ToolUse):
                calls.append(self._tool_use(block, index, position))
            elif isinstance(block, body.Thinking):
                reasoning.append(block.thinking)
            elif isinstance(block, body.ServerToolUse | body.WebSearchToolResult):
                if self._options.messages_web_search == "reject":
                    raise ConversionError("Unsupported content block: server tools are not supported")
            elif self._pending:
                raise self._unanswered(f"messages.{index}.{position}: ")
            elif content.content or block != body.Text(""):
                self._visible(content, block, f"messages.{index}", f"messages.{index}.content[{position}]")
                if content.images:
                    raise ConversionError("Image in assistant message is unsupported")
        self.converted.append(
            AssistantMessage(
                content.content,
                "\n\n".join(reasoning) if reasoning else None,
                tuple(calls) if calls else None,
            )
        )

    def _tool_use(self, block: body.ToolUse, index: int, position: int) -> ToolCall:
        if block.id in self._pending:
            raise ConversionError(f"messages.{index}.content.{position}: `tool_use` ids must be unique")
        self._pending[block.id] = False
        value = free_form(block.input, f"$.messages[{index}].content[{position}].input", _INPUT_DEPTH)
        return ToolCall(block.id, block.name, spaced_v4(value))

    def _system(self, blocks: Sequence[body.Block], index: int) -> None:
        content = MessageContent(self._options.special_tokens)
        added: list[ToolDefinition] = []
        has_additions = False
        for position, block in enumerate(blocks):
            _check_place(block, "system", index)
            if isinstance(block, body.ToolAddition):
                has_additions = True
                tool = self._tools.get(block.tool.name)
                if tool is None:
                    raise ConversionError(
                        f"messages.{index}.content.{position}: "
                        f"`tool_addition` references unknown tool '{block.tool.name}'"
                    )
                added.append(tool)
            else:
                self._visible(content, block, f"messages.{index}", f"messages.{index}.content[{position}]")
        if self._version == "v4":
            self._reminder(content.content)
            return
        shown = self._shown(added)
        if has_additions and not shown and not content.content:
            return
        self.converted.append(
            SystemMessage(
                content.content,
                tools=tuple(shown) if added else None,
                images=tuple(content.images),
                placeholders=tuple(content.placeholders),
            )
        )

    def _reminder(self, text: str) -> None:
        """V4 has no system token within a conversation; the official codec makes it a remark of the user."""
        if text:
            self.converted.append(UserMessage(f"<system-reminder>\n{text}\n</system-reminder>"))

    def _visible(self, content: MessageContent, block: object, path: str, error_path: str) -> None:
        """Text, an image or a document, in any message. `path` is kept with an image, for later errors."""
        if isinstance(block, body.Text):
            content.text(block.text)
        elif isinstance(block, body.Image):
            if self._version == "v4":
                content.text("[Unsupported Image]")
            else:
                content.image(_image_source(block.source, path, error_path))
        elif isinstance(block, body.Document):
            content.text(f"[Unsupported document type: {_document_type(block)}]")

    def _check_reasoning(self) -> None:
        if not (self._thinking and self._options.reject_missing_reasoning):
            return
        for message in reversed(self.converted):
            if isinstance(message, UserMessage):
                return
            if (
                isinstance(message, AssistantMessage)
                and message.reasoning_content is None
                and (self._tools or message.tool_calls)
            ):
                raise ConversionError(
                    "The `content[].thinking` in the thinking mode must be passed back to the API."
                )


def _with_reasoning(message: Message, thinking: bool) -> Message:
    if not isinstance(message, AssistantMessage):
        return message
    reasoning = (message.reasoning_content or "") if thinking else None
    return AssistantMessage(message.content, reasoning, message.tool_calls, message.prefix)


def _document_type(block: body.Document) -> str:
    return "unknown" if block.source.media_type is None else block.source.media_type


def _user_message(content: MessageContent) -> UserMessage:
    return UserMessage(
        content.content, images=tuple(content.images), placeholders=tuple(content.placeholders)
    )


def _without_result(where: str, ids: str) -> ConversionError:
    return ConversionError(
        f"{where}`tool_use` ids were found without `tool_result` blocks immediately after: {ids}. "
        "Each `tool_use` block must have a corresponding `tool_result` block in the next message."
    )


_PLACES: dict[type, tuple[str, str]] = {
    body.ToolUse: ("tool_use", "assistant"),
    body.ServerToolUse: ("tool_use", "assistant"),
    body.WebSearchToolResult: ("web_search_tool_result", "assistant"),
    body.ToolResult: ("tool_result", "user"),
    body.ToolAddition: ("tool_addition", "system"),
}


def _check_place(block: body.Block, role: str, index: int) -> None:
    if isinstance(block, body.Thinking) and role != "assistant":
        raise ConversionError(
            f"messages.{index}.content: thinking blocks may only be in `assistant` messages"
        )
    name, place = _PLACES.get(type(block), ("", role))
    if place != role:
        raise ConversionError(f"messages.{index}: `{name}` blocks can only be in `{place}` messages")


def _image_source(
    source: body.Base64Image | body.UrlSource | body.FileSource, path: str, error_path: str
) -> ImageSource:
    if isinstance(source, body.FileSource):
        raise ConversionError(
            f"{error_path}: file_id is not supported. Pass the image as a base64 data url instead."
        )
    if isinstance(source, body.UrlSource):
        if _EXTERNAL.match(source.url) is None:
            raise ConversionError(f'{error_path}: invalid url: "{source.url}"')
        return UrlImage(source.url, "high", path)
    try:
        base64.b64decode(source.data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConversionError(f"{error_path}: base64 decode error") from error
    return DataUrlImage(f"data:{source.media_type};base64,{source.data}", "high", path)
