"""A Chat Completions body as a conversation request (recipe_spec 3.2), checked in the official order."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from ...conversation import AssistantMessage, Conversation, Message, ToolChoice, ToolDefinition
from ...errors import ConversionError
from ...json_text import compact
from ...parsing.options import ParsingOptions, ThinkingStart
from .. import sampling
from ..body import check_u64, free_form
from ..json_schema import InvalidSchemaError, check_schema
from ..options import ConversionOptions, ModelVersion
from ..request import ConversationRequest, InferenceOptions, OutputConstraint
from ..strict_schema import strict_format
from ..tools import (
    check_choice,
    check_name,
    check_not_mixed,
    checked_parameters,
    only_named,
    tool_constraint,
    unique,
)
from . import body, extensions
from .messages import MessageConverter

_SCHEMA_DEPTH = 5  # of a function's parameters inside the body


def convert(raw: bytes | str, options: ConversionOptions) -> ConversationRequest:
    """Raises `InvalidBodyError` for the shape of a body and `ConversionError` for its meaning."""
    request: body.ChatBody = body.decode(raw)
    check_u64(request.seed, "$.seed")
    if request.thinking is not None:
        check_u64(request.thinking.budget_tokens, "$.thinking.budget_tokens")
    _check_roles(request, options)
    version = sampling.model_version(request.model, options)
    for index, tool in enumerate(request.tools or ()):
        check_name(tool.function.name, f"tools[{index}].function.name")
    if not request.messages:
        raise ConversionError("Empty input messages")
    thinking, effort = sampling.thinking_mode(
        request.thinking.type if request.thinking else None, request.reasoning_effort, options
    )
    converter = MessageConverter(options, version, thinking, bool(request.tools))
    messages = converter.convert(request.messages)
    _check_json_word(request, messages)
    tools, choice = _tools(request)
    check_choice(choice, thinking)
    _check_prefix(request, messages[-1] if messages else None)
    stops = sampling.stop_sequences(request.stop)
    if request.stream_options is not None and not request.stream:
        raise ConversionError("stream_options should be set along with stream = true")
    response_format = _response_format(request)
    check_not_mixed(tools)
    if request.response_format is not None and any(tool.strict for tool in tools):
        raise ConversionError("response_format should not be used with tools")
    inference = _inference(request, thinking, version, bool(tools), options)
    conversation = Conversation(
        messages=messages,
        thinking_mode=thinking,
        tools=tools,
        tool_choice=choice,
        reasoning_effort=effort,
        **response_format.conversation_fields,
    )
    constraint = tool_constraint(tools, choice) or response_format.constraint
    return extensions.apply(
        ConversationRequest(
            conversation=conversation,
            model=request.model,
            model_version=version,
            inference=msgspec.structs.replace(inference, output_constraint=constraint),
            parsing=ParsingOptions(
                parse_tool_calls=bool(tools),
                starts_in_tool_calls=choice == "required",
                parse_json_output=conversation.response_format == "json_object",
                thinking_start=_thinking_start(messages) if thinking else None,
                stop_sequences=stops,
                special_tokens=options.special_tokens,
            ),
            stream=bool(request.stream),
            include_usage=bool(request.stream_options and request.stream_options.include_usage),
        ),
        request,
        options,
    )


def _check_roles(request: body.ChatBody, options: ConversionOptions) -> None:
    if not options.extensions and any(isinstance(m, body.Developer) for m in request.messages):
        raise body.wrong_role("developer")


def _check_json_word(request: body.ChatBody, messages: tuple[Message, ...]) -> None:
    if not isinstance(request.response_format, body.JsonObjectFormat):
        return
    if not any(sampling.says_json(message.content) for message in messages):
        raise ConversionError(
            "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'."
        )


def _check_prefix(request: body.ChatBody, last: Message | None) -> None:
    """What a message to be continued cannot be combined with."""
    if not (isinstance(last, AssistantMessage) and last.prefix):
        return
    if isinstance(request.response_format, body.JsonObjectFormat):
        raise ConversionError("response_format json_object should not be used with prefix")
    if request.tools or any(isinstance(m, body.Assistant) and m.tool_calls for m in request.messages):
        raise ConversionError("Function call should not be used with prefix")


def _tools(request: body.ChatBody) -> tuple[tuple[ToolDefinition, ...], ToolChoice]:
    choice = request.tool_choice
    if choice == "none":
        return (), "none"
    declared = enumerate(request.tools or ())
    tools = unique((tool.function.name, partial(_tool, tool.function, index)) for index, tool in declared)
    if not tools or choice is None:
        return tools, "auto"
    if isinstance(choice, body.NamedChoice):
        return only_named(tools, choice.function.name), "required"
    return tools, choice


def _tool(function: body.Function, index: int) -> ToolDefinition:
    schema = free_form(function.parameters, f"$.tools[{index}].function.parameters", _SCHEMA_DEPTH)
    parameters = checked_parameters(function.name, schema, function.strict)
    return ToolDefinition(function.name, function.description, parameters, function.strict)


class _ResponseFormat(msgspec.Struct, frozen=True):
    conversation_fields: dict[str, Any] = {}
    constraint: OutputConstraint | None = None


def _response_format(request: body.ChatBody) -> _ResponseFormat:
    wanted = request.response_format
    if isinstance(wanted, body.JsonObjectFormat):
        return _ResponseFormat({"response_format": "json_object"}, OutputConstraint("json", ""))
    if isinstance(wanted, body.JsonSchemaFormat):
        return _json_schema(wanted.json_schema)
    if isinstance(wanted, body.RegexFormat):
        fields = {"response_format": "regex", "response_regex": wanted.regex}
        return _ResponseFormat(fields, OutputConstraint("regex", wanted.regex, is_required=True))
    return _ResponseFormat()


def _json_schema(wanted: body.JsonSchema) -> _ResponseFormat:
    """The prompt shows the schema as sent; the strict form holds the decoding."""
    schema = free_form(wanted.schema, "$.response_format.json_schema.schema", 3)
    if wanted.strict:
        enforced = strict_format(schema)
    else:
        try:
            check_schema(schema)
        except InvalidSchemaError as error:
            raise ConversionError(f"Invalid json schema: {error}") from error
        enforced = schema
    fields = {"response_format": "json_schema", "response_schema": schema}
    return _ResponseFormat(fields, OutputConstraint("json", compact(enforced), is_required=True))


def _inference(
    request: body.ChatBody,
    thinking: bool,
    version: ModelVersion,
    has_tools: bool,
    options: ConversionOptions,
) -> InferenceOptions:
    n = extensions.choices(request.n, options)
    presence = sampling.penalty(request.presence_penalty, "presence_penalty")
    frequency = sampling.penalty(request.frequency_penalty, "frequency_penalty")
    temperature = sampling.temperature(request.temperature, thinking, options)
    top_p = sampling.top_p(request.top_p, thinking, version, has_tools, options)
    _check_logprobs(request)
    max_tokens = sampling.max_tokens(request.max_tokens, thinking, options)
    if request.seed is not None and request.seed >= 2**63:
        raise ConversionError("Invalid seed value, the valid range of seed is [0, 2^63)")
    return InferenceOptions(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        logprobs=bool(request.logprobs),
        top_logprobs=request.top_logprobs,
        seed=request.seed,
        n=n,
        presence_penalty=presence,
        frequency_penalty=frequency,
    )


def _check_logprobs(request: body.ChatBody) -> None:
    if request.top_logprobs is None:
        return
    if not request.logprobs:
        raise ConversionError(
            "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used."
        )
    if request.top_logprobs > 20:
        raise ConversionError("Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].")


def _thinking_start(messages: tuple[Message, ...]) -> ThinkingStart:
    last = messages[-1] if messages else None
    if not (isinstance(last, AssistantMessage) and last.prefix):
        return ThinkingStart.REASONING
    if last.content:
        return ThinkingStart.CONTENT_CONTINUATION
    return ThinkingStart.REASONING_CONTINUATION if last.reasoning_content else ThinkingStart.REASONING
