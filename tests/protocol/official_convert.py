"""Requests converted by the official codec, in the form of the stored cases."""

from __future__ import annotations

import json
from typing import Any

from .official import ENCODINGS, peer, plain_image

REQUESTS = {
    "chat": peer.ChatCompletionRequest,
    "messages": peer.MessagesRequest,
    "responses": peer.ResponsesRequest,
}
_VERSIONS = {"v4": peer.ModelVersion.DeepseekV4Pro, "v4.1": peer.ModelVersion.DeepseekV41Flash}
_REASONING = {
    "Reject": peer.ReasoningContentBehavior.Reject,
    "FillEmpty": peer.ReasoningContentBehavior.FillEmpty,
}
_WEB_SEARCH = {"Drop": peer.WebSearchBehavior.Drop, "Reject": peer.WebSearchBehavior.Reject}


def options(plain: dict[str, Any] | None) -> Any:
    keywords = dict(plain or {})
    aliases = keywords.pop("model_aliases", {})
    if "reasoning_content_behavior" in keywords:
        keywords["reasoning_content_behavior"] = _REASONING[keywords["reasoning_content_behavior"]]
    for name in ("responses_web_search", "messages_web_search"):
        if name in keywords:
            keywords[name] = _WEB_SEARCH[keywords[name]]
    built = peer.ConversionOptions(**keywords)
    for name, version in aliases.items():
        built = built.with_model_alias(name, _VERSIONS[version])
    return built


def convert(protocol: str, body: Any, plain_options: dict[str, Any] | None) -> dict[str, Any]:
    raw = body if isinstance(body, str | bytes) else json.dumps(body)
    try:
        request = REQUESTS[protocol](raw if isinstance(raw, bytes) else raw.encode())
    except ValueError as error:
        return {"error": "ValueError", "message": str(error)}
    try:
        return plain_request(request.convert(options(plain_options)))
    except peer.ConversionError as error:
        return {"error": "ConversionError", "status_code": error.status_code, "body": error.body}


def plain_request(request: Any) -> dict[str, Any]:
    conversation, inference = request.conversation, request.inference_options
    parsing, constraint = request.parsing_options, inference.output_constraint
    version = next(name for name, value in _VERSIONS.items() if value == request.model_version)
    start = parsing.thinking_initial_stage
    return {
        "model_version": version,
        "stream": request.stream,
        "conversation": {
            "messages": [_plain_message(message) for message in conversation.messages],
            "thinking_mode": conversation.thinking_mode,
            "tools": [_plain_tool(tool) for tool in conversation.tools],
            "tool_choice": conversation.tool_choice,
            "reasoning_effort": conversation.reasoning_effort,
            "response_format": conversation.response_format,
            "response_schema": conversation.response_schema,
            "response_regex": conversation.response_regex,
        },
        "inference_options": {
            "max_tokens": inference.max_tokens,
            "temperature": inference.temperature,
            "top_p": inference.top_p,
            "logprobs": inference.logprobs,
            "top_logprobs": inference.top_logprobs,
            "seed": inference.seed,
            "output_constraint": constraint and {"kind": constraint.kind, "schema": constraint.schema},
        },
        "parsing_options": {
            "parse_tool_calls": parsing.parse_tool_calls,
            "starts_in_tool_calls": parsing.starts_in_tool_calls,
            "parse_json_output": parsing.parse_json_output,
            "thinking_initial_stage": start and str(start).rpartition(".")[2],
            "stop_sequences": list(parsing.stop_sequences),
        },
        "prompt": ENCODINGS[version]().render_conversation(conversation).prompt,
    }


def _plain_tool(tool: Any) -> dict[str, Any]:
    names = ("name", "description", "parameters", "strict", "defer_loading")
    return {name: getattr(tool, name) for name in names}


def _plain_message(message: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.role == "assistant":
        calls = message.tool_calls
        plain["reasoning_content"] = message.reasoning_content
        plain["tool_calls"] = calls and [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls
        ]
        plain["prefix"] = message.prefix
    elif message.role == "tool":
        plain["tool_call_id"] = message.tool_call_id
    elif message.role == "system":
        plain["tools"] = message.tools and [_plain_tool(tool) for tool in message.tools]
    if message.image_sources:
        plain["image_sources"] = [plain_image(source) for source in message.image_sources]
    return plain
