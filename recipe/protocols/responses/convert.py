"""A Responses body as a conversation request (recipe_spec 3.4), checked in the official order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from ...conversation import (
    AssistantMessage,
    Conversation,
    Message,
    ReasoningEffort,
    SystemMessage,
    ToolChoice,
    ToolDefinition,
    UserMessage,
)
from ...errors import ConversionError
from ...json_text import compact
from ...parsing.options import ParsingOptions, ThinkingStart
from .. import sampling
from ..body import free_form
from ..json_schema import InvalidSchemaError, check_schema
from ..options import ConversionOptions, ModelVersion
from ..request import ConversationRequest, InferenceOptions, OutputConstraint
from ..strict_schema import strict_format
from ..tools import Declaration, check_choice, check_not_mixed, only_named, tool_constraint, unique
from . import body
from .items import ItemReader, Said
from .tools import DecodedTool, NamespaceMap, ToolNames, check_tools, decode_tools, definitions
from .turns import TurnBuilder

History = Callable[[str], tuple[Message, ...]]


class ResponsesRequest(msgspec.Struct, frozen=True):
    """A converted request, its body (responses echo it), and how to print names of namespaced tools."""

    request: ConversationRequest
    body: body.ResponsesBody
    namespaces: NamespaceMap

    @property
    def wants_store(self) -> bool:
        """Whether the response is to be remembered: yes, unless the client says no."""
        return self.body.store is not False

    @property
    def messages_to_keep(self) -> tuple[Message, ...]:
        """The conversation without the instructions, which a following request gives anew."""
        messages = self.request.conversation.messages
        return messages[1:] if self.body.instructions else messages


def convert(raw: bytes | str, options: ConversionOptions) -> ConversationRequest:
    """Raises `InvalidBodyError` for the shape of a body and `ConversionError` for its meaning."""
    return convert_with_body(raw, options).request


def convert_with_body(
    raw: bytes | str, options: ConversionOptions, history: History | None = None
) -> ResponsesRequest:
    """The same with what a response needs. `history` finds an earlier conversation by its response's id."""
    request: body.ResponsesBody = body.decode(raw)
    items = _decoded_items(request)
    tools = decode_tools(request.tools or (), "tools")
    version = sampling.model_version(request.model, options)
    check_tools(tools, options)
    _check_input(request)
    thinking, effort = sampling.thinking_mode(
        None, request.reasoning.effort if request.reasoning else None, options
    )
    tools = _known_to(version, tools)
    names = ToolNames(version, (tool.tool.name for tool in tools if isinstance(tool.tool, body.FunctionTool)))
    builder = TurnBuilder(thinking, names)
    if request.instructions:
        builder.messages.append(SystemMessage(request.instructions))
    if options.extensions and history is not None and request.previous_response_id is not None:
        builder.go_on(history(_text(request.previous_response_id, "previous_response_id")))
    _read_items(request, items, ItemReader(options, version, names), builder)
    _check_reasoning(builder.messages, _has_tools(tools) or bool(builder.searches), thinking, options)
    conversation, constraint = _conversation(request, definitions(tools, names), builder, options, effort)
    chosen, choice = conversation.tools, conversation.tool_choice
    inference = InferenceOptions(
        temperature=sampling.temperature(request.temperature, thinking, options),
        top_p=sampling.top_p(request.top_p, thinking, version, bool(chosen), options),
        logprobs=request.top_logprobs is not None,
        top_logprobs=_top_logprobs(request),
        max_tokens=sampling.max_tokens(request.max_output_tokens, thinking, options),
        output_constraint=constraint,
    )
    converted = ConversationRequest(
        conversation=conversation,
        model=request.model,
        model_version=version,
        inference=inference,
        parsing=ParsingOptions(
            parse_tool_calls=bool(chosen),
            starts_in_tool_calls=choice == "required",
            parse_json_output=conversation.response_format == "json_object",
            thinking_start=ThinkingStart.REASONING if thinking else None,
            special_tokens=options.special_tokens,
        ),
        stream=bool(request.stream),
        cache_key=_cache_key(request, options),
        retention=request.prompt_cache_retention if options.extensions else None,
    )
    return ResponsesRequest(converted, request, names.namespaces)


def _read_items(
    request: body.ResponsesBody,
    items: list[tuple[int, body.Item]],
    reader: ItemReader,
    builder: TurnBuilder,
) -> None:
    reader.check_found_tools(items)
    read = (reader.read(item, index) for index, item in items)
    said = [Said(UserMessage(request.input))] if isinstance(request.input, str) else []
    builder.build(chain(said, (piece for piece in read if piece is not None)))


def _conversation(
    request: body.ResponsesBody,
    declared: Iterable[Declaration],
    builder: TurnBuilder,
    options: ConversionOptions,
    effort: ReasoningEffort | None,
) -> tuple[Conversation, OutputConstraint | None]:
    chosen, choice = _chosen_tools(request, chain(declared, builder.found_tools()), options)
    messages = builder.announce({tool.name: tool for tool in chosen})
    check_choice(choice, builder.thinking)
    _check_json_word(request, messages)
    response_format, constraint = _format(request)
    check_not_mixed(chosen)
    if response_format and any(tool.strict for tool in chosen):
        raise ConversionError("response_format should not be used with tools")
    conversation = Conversation(
        messages=messages,
        thinking_mode=builder.thinking,
        tools=chosen,
        tool_choice=choice,
        reasoning_effort=effort,
        **response_format,
    )
    return conversation, tool_constraint(chosen, choice) or constraint


def _known_to(version: ModelVersion, tools: list[DecodedTool]) -> list[DecodedTool]:
    """V4 knows no tool search."""
    return [tool for tool in tools if version != "v4" or not isinstance(tool.tool, body.ToolSearchTool)]


def _has_tools(tools: list[DecodedTool]) -> bool:
    """Whether the client declared something the model may call."""
    return any(
        isinstance(tool.tool, body.FunctionTool | body.NamespaceTool | body.CustomTool)
        or (isinstance(tool.tool, body.ToolSearchTool) and tool.tool.execution == "client")
        for tool in tools
    )


def _decoded_items(request: body.ResponsesBody) -> list[tuple[int, body.Item]]:
    if not isinstance(request.input, list):
        return []
    decoded = ((index, body.decode_item(item, index)) for index, item in enumerate(request.input))
    items = [(index, item) for index, item in decoded if item is not None]
    for index, item in items:
        if isinstance(item, body.ToolSearchOutput):
            decode_tools(item.tools, f"input[{index}].tools")  # what is wrong with them is said first
    return items


def _check_input(request: body.ResponsesBody) -> None:
    if request.input is None and not request.instructions:
        raise ConversionError("Either input or instructions must be provided")
    if request.input == []:
        raise ConversionError("Input items array must not be empty")


def _check_json_word(request: body.ResponsesBody, messages: Sequence[Message]) -> None:
    if request.text is None or not isinstance(request.text.format, body.JsonObjectFormat):
        return
    if not any(sampling.says_json(message.content) for message in messages):
        raise ConversionError(
            "Response input messages must contain the word 'json' in some form "
            "to use 'text.format' of type 'json_object'."
        )


def _chosen_tools(
    request: body.ResponsesBody, declared: Iterable[Declaration], options: ConversionOptions
) -> tuple[tuple[ToolDefinition, ...], ToolChoice]:
    choice = request.tool_choice
    if choice == "none":
        return (), "none"
    is_web_search = isinstance(choice, body.WebSearchChoice | body.DatedWebSearchChoice)
    if is_web_search and options.responses_web_search == "reject":
        raise ConversionError("Server tools are not supported")
    tools = unique(declared)
    if not tools or choice is None or is_web_search:
        return tools, "auto"
    if isinstance(choice, body.FunctionChoice | body.CustomChoice):
        return only_named(tools, choice.name), "required"
    return tools, "required" if choice == "required" else "auto"


def _format(request: body.ResponsesBody) -> tuple[dict[str, Any], OutputConstraint | None]:
    wanted = request.text.format if request.text is not None else None
    if isinstance(wanted, body.JsonObjectFormat):
        return {"response_format": "json_object"}, OutputConstraint("json", "")
    if not isinstance(wanted, body.JsonSchemaFormat):
        return {}, None
    schema = free_form(wanted.schema, "$.text.format.schema", 3)
    if wanted.strict:
        enforced = strict_format(schema)
    else:
        try:
            check_schema(schema)
        except InvalidSchemaError as error:
            raise ConversionError(f"Invalid json schema: {error}") from error
        enforced = schema
    fields = {"response_format": "json_schema", "response_schema": schema}
    return fields, OutputConstraint("json", compact(enforced), is_required=True)


def _top_logprobs(request: body.ResponsesBody) -> int | None:
    if request.top_logprobs is not None and request.top_logprobs > 20:
        raise ConversionError("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].")
    return request.top_logprobs


def _check_reasoning(
    messages: Sequence[Message], has_tools: bool, thinking: bool, options: ConversionOptions
) -> None:
    if not (thinking and options.reject_missing_reasoning):
        return
    for message in reversed(messages):
        if isinstance(message, UserMessage):
            return
        if (
            isinstance(message, AssistantMessage)
            and not message.reasoning_content
            and (has_tools or message.tool_calls)
        ):
            raise ConversionError("The `reasoning_text` in the thinking mode must be passed back to the API.")


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise ConversionError(f"Invalid {name} value, expected a string")
    return value


def _cache_key(request: body.ResponsesBody, options: ConversionOptions) -> str | None:
    if not options.extensions:
        return None
    key = request.prompt_cache_key
    return key if isinstance(key, str) else request.user
