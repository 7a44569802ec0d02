"""The body of a Chat Completions request, as it is sent.

Fields behind the blank lines are not read by the official codec; they take effect only with
`ConversionOptions.extensions`, so their types are not checked before.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...conversation import ImageDetail
from ...errors import InvalidBodyError
from ..body import U8, U32, U64, BodyDecoder

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]


class TextPart(msgspec.Struct, tag="text"):
    text: str


class ImageUrl(msgspec.Struct):
    url: str
    detail: ImageDetail | None = None


class ImagePart(msgspec.Struct, tag="image_url"):
    image_url: ImageUrl


class FilePart(msgspec.Struct, tag="file"):
    file_id: str | None = None
    file_data: str | None = None
    filename: str | None = None


Part = TextPart | ImagePart | FilePart
Content = str | list[Part]


class FunctionCall(msgspec.Struct):
    name: str
    arguments: str


class Call(msgspec.Struct):
    id: str
    type: Literal["function"]
    function: FunctionCall


class System(msgspec.Struct, tag_field="role", tag="system"):
    content: Content
    name: str | None = None


class Developer(msgspec.Struct, tag_field="role", tag="developer"):
    """The newer name of the system role."""

    content: Content


class User(msgspec.Struct, tag_field="role", tag="user"):
    content: Content
    name: str | None = None


class Assistant(msgspec.Struct, tag_field="role", tag="assistant"):
    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    prefix: bool | None = None
    name: str | None = None


class Tool(msgspec.Struct, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: str


class LatestReminder(msgspec.Struct, tag_field="role", tag="latest_reminder"):
    content: str


ChatMessage = System | Developer | User | Assistant | Tool | LatestReminder


class Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class FunctionTool(msgspec.Struct):
    type: Literal["function"]
    function: Function


class FunctionName(msgspec.Struct):
    name: str


class NamedChoice(msgspec.Struct):
    type: Literal["function"]
    function: FunctionName


class JsonSchema(msgspec.Struct):
    schema: Any
    name: str | None = None
    strict: bool | None = None


class TextFormat(msgspec.Struct, tag="text"):
    pass


class JsonObjectFormat(msgspec.Struct, tag="json_object"):
    pass


class JsonSchemaFormat(msgspec.Struct, tag="json_schema"):
    json_schema: JsonSchema


class RegexFormat(msgspec.Struct, tag="regex"):
    regex: str


class Thinking(msgspec.Struct):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: U64 | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class ChatBody(msgspec.Struct):
    model: str
    messages: list[ChatMessage]
    thinking: Thinking | None = None
    reasoning_effort: Effort | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: U32 | None = None
    n: U8 | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[FunctionTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None
    response_format: TextFormat | JsonObjectFormat | JsonSchemaFormat | RegexFormat | None = None
    logprobs: bool | None = None
    top_logprobs: U8 | None = None
    seed: U64 | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    max_completion_tokens: Any = None
    logit_bias: Any = None
    top_k: Any = None
    user: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


decode = BodyDecoder(ChatBody).decode


def wrong_role(role: str) -> InvalidBodyError:
    """The error for a role only newer clients send."""
    known = "`system`, `user`, `assistant`, `tool`, `latest_reminder`"
    return InvalidBodyError(f"invalid request body: unknown variant `{role}`, expected one of {known}")
