"""The body of a Responses request, as it is sent.

Items and tools of a type this codec does not know are skipped, so both are decoded one by one.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ...conversation import ImageDetail
from ...errors import InvalidBodyError
from ..body import U8, U32, BodyDecoder
from ..chat.body import Effort

Role = Literal["user", "assistant", "system", "developer"]


class InputText(msgspec.Struct, tag="input_text"):
    text: str


class OutputText(msgspec.Struct, tag="output_text"):
    text: str


class InputImage(msgspec.Struct, tag="input_image"):
    image_url: str | None = None
    file_id: str | None = None
    detail: ImageDetail | None = None


class InputFile(msgspec.Struct, tag="input_file"):
    pass


Part = InputText | OutputText | InputImage | InputFile
OutputPart = InputText | InputImage | InputFile


class MessageItem(msgspec.Struct):
    role: Role
    content: str | list[Part]


class ReasoningPart(msgspec.Struct):
    text: str


class ReasoningItem(msgspec.Struct):
    content: list[ReasoningPart] | None = None
    encrypted_content: str | None = None


class FunctionCall(msgspec.Struct):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class FunctionCallOutput(msgspec.Struct):
    output: str | list[OutputPart]
    call_id: str | None = None


class CustomToolCall(msgspec.Struct):
    call_id: str
    name: str
    input: str


class CustomToolCallOutput(msgspec.Struct):
    call_id: str
    output: str | list[OutputPart] | None = None


class ToolSearchCall(msgspec.Struct):
    call_id: str
    arguments: dict[str, Any]


class ToolSearchOutput(msgspec.Struct):
    call_id: str
    tools: list[dict[str, Any]]


Item = (
    MessageItem
    | ReasoningItem
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | ToolSearchCall
    | ToolSearchOutput
)
_ITEMS: dict[str, type[Item]] = {
    "message": MessageItem,
    "reasoning": ReasoningItem,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "custom_tool_call": CustomToolCall,
    "custom_tool_call_output": CustomToolCallOutput,
    "tool_search_call": ToolSearchCall,
    "tool_search_output": ToolSearchOutput,
}


class FunctionTool(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: Any = None
    strict: bool | None = None


class CustomTool(msgspec.Struct):
    name: str


class NamespaceFunction(FunctionTool, tag="function"):
    pass


class NamespaceCustom(CustomTool, tag="custom"):
    pass


class NamespaceTool(msgspec.Struct):
    name: str
    tools: list[NamespaceFunction | NamespaceCustom]
    description: str | None = None


class ToolSearchTool(msgspec.Struct):
    execution: Literal["client", "server"] | None = None
    description: str | None = None
    parameters: Any = None


class WebSearchTool(msgspec.Struct):
    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: Any = None


Tool = FunctionTool | CustomTool | NamespaceTool | ToolSearchTool | WebSearchTool
_TOOLS: dict[str, type[Tool]] = {
    "function": FunctionTool,
    "custom": CustomTool,
    "namespace": NamespaceTool,
    "tool_search": ToolSearchTool,
    "web_search": WebSearchTool,
    "web_search_2025_08_26": WebSearchTool,
}


class FunctionChoice(msgspec.Struct, tag="function"):
    name: str


class CustomChoice(msgspec.Struct, tag="custom"):
    name: str


class WebSearchChoice(msgspec.Struct, tag="web_search"):
    pass


class DatedWebSearchChoice(msgspec.Struct, tag="web_search_2025_08_26"):
    pass


Choice = FunctionChoice | CustomChoice | WebSearchChoice | DatedWebSearchChoice


class Reasoning(msgspec.Struct):
    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(msgspec.Struct, tag="text"):
    pass


class JsonObjectFormat(msgspec.Struct, tag="json_object"):
    pass


class JsonSchemaFormat(msgspec.Struct, tag="json_schema"):
    name: str
    schema: Any
    description: str | None = None
    strict: bool | None = None


Format = TextFormat | JsonObjectFormat | JsonSchemaFormat


class TextConfig(msgspec.Struct):
    format: Format = msgspec.field(default_factory=TextFormat)
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesBody(msgspec.Struct):
    model: str
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    max_output_tokens: U32 | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Literal["none", "auto", "required"] | Choice | None = None
    reasoning: Reasoning | None = None
    text: TextConfig | None = None
    user: str | None = None
    top_logprobs: U8 | None = None

    previous_response_id: Any = None
    store: Any = None
    prompt_cache_key: Any = None
    prompt_cache_retention: Any = None


decode = BodyDecoder(ResponsesBody).decode


def decode_item(item: dict[str, Any], index: int) -> Item | None:
    """One input item; None for a type to be skipped. Raises `InvalidBodyError`."""
    where = f"$.input[{index}]"
    if "type" not in item:
        if "role" not in item:
            raise InvalidBodyError(f"invalid request body: invalid input item - at `{where}`")
        message: MessageItem = _convert(item, MessageItem, where)
        return message
    kind = _ITEMS.get(_type_name(item, where))
    if kind is None:
        return None
    decoded: Item = _convert(item, kind, where)
    return decoded


def decode_tool(tool: dict[str, Any], where: str) -> tuple[str, Tool | None]:
    """The type of a tool, and the tool, or None for a type to be skipped. Raises `InvalidBodyError`."""
    name = _type_name(tool, where)
    kind = _TOOLS.get(name)
    return name, None if kind is None else _convert(tool, kind, where)


def _type_name(value: dict[str, Any], where: str) -> str:
    name = value.get("type")
    if not isinstance(name, str):
        raise InvalidBodyError(f"invalid request body: expected a string - at `{where}.type`")
    return name


def _convert(value: dict[str, Any], kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidBodyError(f"invalid request body: {error} - in `{where}`") from error
