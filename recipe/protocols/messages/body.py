"""The body of a Messages request, as it is sent."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..body import U32, U64, BodyDecoder
from ..chat.body import Effort


class Text(msgspec.Struct, tag="text"):
    text: str


class SystemText(msgspec.Struct):
    type: Literal["text"]
    text: str


class Base64Image(msgspec.Struct, tag="base64"):
    media_type: Literal["image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(msgspec.Struct, tag="url"):
    url: str


class FileSource(msgspec.Struct, tag="file"):
    file_id: str


class Image(msgspec.Struct, tag="image"):
    source: Base64Image | UrlSource | FileSource


class DocumentSource(msgspec.Struct):
    """Never read further: a document becomes a remark that names its type."""

    media_type: str | None = None


class Document(msgspec.Struct, tag="document"):
    source: DocumentSource


class Thinking(msgspec.Struct, tag="thinking"):
    thinking: str
    signature: str | None = None


class ServerToolUse(msgspec.Struct, tag="server_tool_use"):
    id: str
    name: str
    input: Any


class ToolUse(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: Any


class ToolReference(msgspec.Struct, tag="tool_reference"):
    tool_name: str


class ToolResult(msgspec.Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[Text | Image | Document | ToolReference] | None = None
    is_error: bool | None = None


class WebSearchToolResult(msgspec.Struct, tag="web_search_tool_result"):
    tool_use_id: str
    content: Any


class AddedTool(msgspec.Struct):
    type: Literal["tool_reference"]
    name: str


class ToolAddition(msgspec.Struct, tag="tool_addition"):
    tool: AddedTool


Block = (
    Text
    | Image
    | Document
    | Thinking
    | ServerToolUse
    | ToolUse
    | ToolResult
    | WebSearchToolResult
    | ToolAddition
)


class Message(msgspec.Struct):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Tool(msgspec.Struct):
    """Any `type` means a tool that the server runs; then nothing else is required."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    description: str | None = None
    input_schema: Any = None
    defer_loading: bool | None = None
    type: str | msgspec.UnsetType = msgspec.UNSET


class Auto(msgspec.Struct, tag="auto"):
    disable_parallel_tool_use: bool | None = None


class AnyTool(msgspec.Struct, tag="any"):
    disable_parallel_tool_use: bool | None = None


class NoTool(msgspec.Struct, tag="none"):
    pass


class NamedTool(msgspec.Struct, tag="tool"):
    name: str
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(msgspec.Struct):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: U64 | None = None


class OutputConfig(msgspec.Struct):
    effort: Effort | None = None
    format: Any = None


class Metadata(msgspec.Struct):
    user_id: str | None = None


class MessagesBody(msgspec.Struct):
    model: str
    messages: list[Message]
    max_tokens: U32 | None = None
    system: str | list[SystemText] | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    thinking: ThinkingConfig | None = None
    tools: list[Tool] | None = None
    tool_choice: Auto | AnyTool | NoTool | NamedTool | None = None
    metadata: Metadata | None = None
    output_config: OutputConfig | None = None

    top_k: Any = None


decode = BodyDecoder(MessagesBody).decode
