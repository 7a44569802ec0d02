"""A conversation and what is asked of its answer, independent of any API.

The three request formats are converted to this, and prompts are rendered from this alone, so that a format
never needs to know a prompt version and a prompt version never needs to know a format. Everything is frozen:
ids are cached by what was rendered, and a message must not change behind the cache.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ImageDetail = Literal["low", "high", "original", "auto"]
ToolChoice = Literal["auto", "none", "required"]
ReasoningEffort = Literal["low", "high", "xhigh", "max"]
ResponseFormat = Literal["text", "json_object", "json_schema", "regex"]


class DataUrlImage(msgspec.Struct, frozen=True, tag="data_url", tag_field="kind"):
    """An image inside the request. `path` says where in the request, for error messages."""

    data_url: str
    detail: ImageDetail = "high"
    path: str = ""


class UrlImage(msgspec.Struct, frozen=True, tag="url", tag_field="kind"):
    """An image to be fetched."""

    url: str
    detail: ImageDetail = "high"
    path: str = ""


class BytesImage(msgspec.Struct, frozen=True, tag="bytes", tag_field="kind"):
    """An image an embedding application has in hand: an encoded file."""

    data: bytes
    detail: ImageDetail = "high"
    path: str = ""


ImageSource = DataUrlImage | UrlImage | BytesImage


class ToolCall(msgspec.Struct, frozen=True):
    """A call the assistant made. `arguments` is text that should be a JSON object; nobody has checked."""

    id: str
    name: str
    arguments: str


class ToolDefinition(msgspec.Struct, frozen=True):
    """A function the assistant may call. `parameters` is a JSON Schema, shown to the model as it stands."""

    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None
    defer_loading: bool = False


class ImageContent(msgspec.Struct, frozen=True, kw_only=True):
    """Text with images in it, the part that system, user and tool messages share.

    `placeholders` are the (start, end) offsets in `content` of one image token per source, ascending. None
    means: the first occurrences of the image token's spelling, as many as there are sources. Conversion
    always says which ones, so that a spelling typed by a user before an image stays text.
    """

    images: tuple[ImageSource, ...] = ()
    placeholders: tuple[tuple[int, int], ...] | None = None


class SystemMessage(ImageContent, frozen=True, tag="system", tag_field="role"):
    """`tools` are definitions that become available at this point of the conversation (V4.1 only)."""

    content: str
    tools: tuple[ToolDefinition, ...] | None = None


class UserMessage(ImageContent, frozen=True, tag="user", tag_field="role"):
    content: str


class ToolMessage(ImageContent, frozen=True, tag="tool", tag_field="role"):
    content: str
    tool_call_id: str | None = None


class AssistantMessage(msgspec.Struct, frozen=True, tag="assistant", tag_field="role"):
    """`prefix`: the model continues this message instead of starting a new turn."""

    content: str
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    prefix: bool = False


class LatestReminderMessage(msgspec.Struct, frozen=True, tag="latest_reminder", tag_field="role"):
    content: str


Message = SystemMessage | UserMessage | AssistantMessage | ToolMessage | LatestReminderMessage


class Conversation(msgspec.Struct, frozen=True):
    """Messages and the configuration of the prompt. `reasoning_effort` None renders as high."""

    messages: tuple[Message, ...] = ()
    thinking_mode: bool = True
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = "auto"
    reasoning_effort: ReasoningEffort | None = None
    response_format: ResponseFormat = "text"
    response_schema: Any = None
    response_regex: str | None = None

    @property
    def active_tools(self) -> tuple[ToolDefinition, ...]:
        """The tools the model is told about. A deferred one counts although its schema is not shown."""
        return () if self.tool_choice == "none" else self.tools
