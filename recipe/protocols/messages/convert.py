"""A Messages body as a conversation request (recipe_spec 3.3), checked in the official order."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

from ...conversation import Conversation, SystemMessage, ToolChoice, ToolDefinition
from ...errors import ConversionError, InvalidBodyError
from ...parsing.options import ParsingOptions, ThinkingStart
from .. import sampling
from ..body import check_u64, free_form
from ..options import ConversionOptions, ModelVersion
from ..request import ConversationRequest, InferenceOptions
from ..tools import check_choice, check_name, checked_schema, only_named, tool_constraint, unique
from . import body
from .content import MessageConverter

_SCHEMA_DEPTH = 4  # of a tool's schema inside the body
_BILLING_HEADER = "x-anthropic-billing-header"


def convert(raw: bytes | str, options: ConversionOptions) -> ConversationRequest:
    """Raises `InvalidBodyError` for the shape of a body and `ConversionError` for its meaning."""
    request: body.MessagesBody = body.decode(raw)
    if request.thinking is not None:
        check_u64(request.thinking.budget_tokens, "$.thinking.budget_tokens")
    for index, tool in enumerate(request.tools or ()):
        if not isinstance(tool.name, str) and not isinstance(tool.type, str):
            raise InvalidBodyError(f"invalid request body: missing field `name` - at `$.tools[{index}]`")
    version = sampling.model_version(request.model, options)
    thinking, effort = sampling.thinking_mode(
        request.thinking.type if request.thinking else None,
        request.output_config.effort if request.output_config else None,
        options,
    )
    declared, dropped = _declared_tools(request, version, options)
    if not request.messages:
        raise ConversionError("messages: at least one message is required")
    named = {tool.name: tool for tool in declared}
    converter = MessageConverter(options, version, thinking, named, _usable(request, named, dropped))
    if request.system is not None:
        converter.converted.append(SystemMessage(_system_text(request.system)))
    messages = converter.convert(request.messages)
    tools, choice = _chosen_tools(request, declared, dropped, options, thinking)
    check_choice(choice, thinking)
    stops = sampling.stop_sequences(request.stop_sequences)
    inference = InferenceOptions(
        temperature=sampling.temperature(request.temperature, thinking, options),
        top_p=sampling.top_p(request.top_p, thinking, version, bool(tools), options),
        max_tokens=_max_tokens(request.max_tokens, thinking, options),
        output_constraint=tool_constraint(tools, choice),
        top_k=_top_k(request, options),
    )
    return ConversationRequest(
        conversation=Conversation(
            messages=messages,
            thinking_mode=thinking,
            tools=tools,
            tool_choice=choice,
            reasoning_effort=effort,
        ),
        model=request.model,
        model_version=version,
        inference=inference,
        parsing=ParsingOptions(
            parse_tool_calls=bool(tools),
            starts_in_tool_calls=choice == "required",
            thinking_start=ThinkingStart.REASONING if thinking else None,
            stop_sequences=stops,
            special_tokens=options.special_tokens,
        ),
        stream=bool(request.stream),
        cache_key=request.metadata.user_id if request.metadata and options.extensions else None,
    )


def _system_text(system: str | list[body.SystemText]) -> str:
    if isinstance(system, str):
        return system
    texts = [block.text for block in system]
    if texts and texts[0][: len(_BILLING_HEADER)].lower() == _BILLING_HEADER:
        del texts[0]
    return "\n\n".join(texts)


def _declared_tools(
    request: body.MessagesBody, version: ModelVersion, options: ConversionOptions
) -> tuple[list[ToolDefinition], set[str]]:
    """The client's tools, schemas not checked yet, and the names of dropped server tools."""
    declared: list[ToolDefinition] = []
    dropped: set[str] = set()
    for index, tool in enumerate(request.tools or ()):
        kind = _server_kind(tool, options)
        if kind is not None:
            if options.messages_web_search != "drop" or not kind.startswith("web_search"):
                raise ConversionError(f"tools[{index}]: server tools are not supported")
            dropped.add(tool.name if isinstance(tool.name, str) else "web_search")
            continue
        name = str(tool.name)
        check_name(name, f"tools[{index}].name")
        schema = free_form(tool.input_schema, f"$.tools[{index}].input_schema", _SCHEMA_DEPTH)
        deferred = bool(tool.defer_loading) and version != "v4"  # which knows nothing of deferral
        declared.append(ToolDefinition(name, tool.description, schema, None, deferred))
    if declared and all(tool.defer_loading for tool in declared):
        raise ConversionError(
            "tools: at least one tool must have defer_loading=false. All tools cannot be deferred."
        )
    return declared, dropped


def _server_kind(tool: body.Tool, options: ConversionOptions) -> str | None:
    """The type of a tool the server would have to run. `custom` is Anthropic's word for the client's own."""
    if not isinstance(tool.type, str) or (options.extensions and tool.type == "custom"):
        return None
    return tool.type


def _usable(
    request: body.MessagesBody, declared: Collection[str], dropped: Collection[str]
) -> Collection[str]:
    """Names of the tools that the choice leaves."""
    choice = request.tool_choice
    if isinstance(choice, body.NoTool):
        return ()
    return (choice.name,) if isinstance(choice, body.NamedTool) and choice.name not in dropped else declared


def _chosen_tools(
    request: body.MessagesBody,
    declared: list[ToolDefinition],
    dropped: set[str],
    options: ConversionOptions,
    thinking: bool,
) -> tuple[tuple[ToolDefinition, ...], ToolChoice]:
    """`any` is required where that can be had: a thinking model decides for itself."""
    choice = request.tool_choice
    if isinstance(choice, body.NoTool):
        return (), "none"
    tools = unique((tool.name, partial(_with_checked_schema, tool)) for tool in declared)
    if not tools and not dropped:
        return (), "auto"
    if isinstance(choice, body.NamedTool) and choice.name not in dropped:
        return only_named(tools, choice.name), "required"
    if isinstance(choice, body.AnyTool) and tools and options.extensions and not thinking:
        return tools, "required"
    return tools, "auto"


def _with_checked_schema(tool: ToolDefinition) -> ToolDefinition:
    checked_schema(tool.name, tool.parameters)
    return tool


def _max_tokens(value: int | None, thinking: bool, options: ConversionOptions) -> int | None:
    """A larger value than allowed is lowered, where the other protocols refuse it."""
    if value is not None:
        value = min(value, options.max_tokens(thinking))
    return sampling.max_tokens(value, thinking, options)


def _top_k(request: body.MessagesBody, options: ConversionOptions) -> int | None:
    if not options.extensions or request.top_k is None:
        return None
    if type(request.top_k) is not int or request.top_k < -1:
        raise ConversionError("Invalid top_k value, expected an integer of at least -1")
    return request.top_k
