"""Reads the stored outputs of the official codec and normalises what is different on every run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from stepahead.recipe import conversation as ours
from stepahead.recipe.encoding.encoder import RENDERERS
from stepahead.recipe.errors import ConversionError, InvalidBodyError
from stepahead.recipe.protocols.chat.convert import convert as convert_chat
from stepahead.recipe.protocols.messages.convert import convert as convert_messages
from stepahead.recipe.protocols.options import OFFICIAL_NAMES, ConversionOptions
from stepahead.recipe.protocols.request import ConversationRequest
from stepahead.recipe.protocols.responses.convert import convert as convert_responses
from stepahead.recipe.special_tokens import SpecialTokens

_DATA = Path(__file__).parent / "data"
_CLOCKS = frozenset({"created", "created_at", "completed_at"})
_CALL_ID = re.compile(r"(call_\d{2,}_(?:ET_)?)[0-9A-Za-z]{20}\d{4}")

Case = dict[str, Any]


def load(name: str) -> list[Case]:
    cases: list[Case] = json.loads((_DATA / f"{name}.json").read_text())["cases"]
    return cases


def normalise(value: Any) -> Any:
    """Clocks to 0, the random part of call ids to `*`."""
    if isinstance(value, str):
        return _CALL_ID.sub(r"\1*", value)
    if isinstance(value, list):
        return [normalise(item) for item in value]
    if isinstance(value, dict):
        return {
            key: 0 if key in _CLOCKS and isinstance(item, int | float) else normalise(item)
            for key, item in value.items()
        }
    return value


def conversation(plain: dict[str, Any]) -> ours.Conversation:
    """Our conversation from constructor keywords; a schema or an expression implies its format."""
    plain = dict(plain)
    if plain.get("response_schema") is not None:
        plain["response_format"] = "json_schema"
    elif plain.get("response_regex") is not None:
        plain["response_format"] = "regex"
    plain["messages"] = [_message(message) for message in plain.get("messages", ())]
    return msgspec.convert(plain, ours.Conversation)


def _message(plain: dict[str, Any]) -> dict[str, Any]:
    if "image_sources" not in plain:
        return plain
    message = {key: value for key, value in plain.items() if key != "image_sources"}
    return message | {"images": [_image(source) for source in plain["image_sources"] or ()]}


def _image(plain: dict[str, Any]) -> dict[str, Any]:
    image = {key: value for key, value in plain.items() if key != "data_hex"}
    return image | ({"data": bytes.fromhex(plain["data_hex"])} if "data_hex" in plain else {})


def special_tokens(case: Case) -> SpecialTokens:
    return SpecialTokens(**case["input"].get("special_tokens", {}))


def plain_images(images: tuple[ours.ImageSource, ...]) -> list[dict[str, Any]]:
    """Image sources as the stored cases write them."""
    plain = []
    for image in images:
        fields: dict[str, Any] = msgspec.to_builtins(image, builtin_types=(bytes,))
        if "data" in fields:
            fields["data_hex"] = fields.pop("data").hex()
        plain.append(fields)
    return plain


def conversion_options(plain: dict[str, Any] | None) -> ConversionOptions:
    """Our options from the names the stored cases use."""
    plain = dict(plain or {})
    chosen: dict[str, Any] = {}
    if "default_thinking_mode" in plain:
        chosen["default_thinking_mode"] = plain["default_thinking_mode"]
    if "reasoning_content_behavior" in plain:
        chosen["reject_missing_reasoning"] = plain["reasoning_content_behavior"] == "Reject"
    for name in ("responses_web_search", "messages_web_search"):
        if name in plain:
            chosen[name] = plain[name].lower()
    for name, ours_name in _BOUNDS.items():
        if name in plain:
            chosen[ours_name] = plain[name]
    if "special_tokens" in plain:
        chosen["special_tokens"] = SpecialTokens(**plain["special_tokens"])
    if "model_aliases" in plain:
        chosen["model_versions"] = OFFICIAL_NAMES | plain["model_aliases"]
    return ConversionOptions(**chosen)


_BOUNDS = {
    "thinking_max_tokens_upper_bound": "thinking_max_tokens",
    "non_thinking_max_tokens_upper_bound": "plain_max_tokens",
}
CONVERTERS = {"chat": convert_chat, "messages": convert_messages, "responses": convert_responses}


def convert(protocol: str, body: Any, options: dict[str, Any] | None) -> dict[str, Any]:
    """What our codec makes of a body, in the form of `expect`."""
    raw = body if isinstance(body, str | bytes) else json.dumps(body)
    try:
        request = CONVERTERS[protocol](raw, conversion_options(options))
    except InvalidBodyError as error:
        return {"error": "ValueError", "message": error.message}
    except ConversionError as error:
        return {"error": "ConversionError", "status_code": error.status_code, "body": error.body}
    return plain_request(request)


def plain_request(request: ConversationRequest) -> dict[str, Any]:
    conversation, inference, parsing = request.conversation, request.inference, request.parsing
    constraint, start = inference.output_constraint, parsing.thinking_start
    return {
        "model_version": request.model_version,
        "stream": request.stream,
        "conversation": {
            "messages": [plain_message(message) for message in conversation.messages],
            "thinking_mode": conversation.thinking_mode,
            "tools": [msgspec.structs.asdict(tool) for tool in conversation.tools],
            "tool_choice": conversation.tool_choice,
            "reasoning_effort": conversation.reasoning_effort,
            "response_format": conversation.response_format,
            "response_schema": conversation.response_schema,
            "response_regex": conversation.response_regex,
        },
        "inference_options": {
            **{name: getattr(inference, name) for name in _INFERENCE},
            "output_constraint": constraint and {"kind": constraint.kind, "schema": constraint.schema},
        },
        "parsing_options": {
            "parse_tool_calls": parsing.parse_tool_calls,
            "starts_in_tool_calls": parsing.starts_in_tool_calls,
            "parse_json_output": parsing.parse_json_output,
            "thinking_initial_stage": start and start.value,
            "stop_sequences": list(parsing.stop_sequences),
        },
        "prompt": RENDERERS[request.model_version](conversation, parsing.special_tokens).prompt,
    }


_INFERENCE = ("max_tokens", "temperature", "top_p", "logprobs", "top_logprobs", "seed")


def plain_message(message: ours.Message) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(msgspec.json.encode(message))
    plain.pop("placeholders", None)
    plain.pop("images", None)
    if isinstance(message, ours.ImageContent) and message.images:
        plain["image_sources"] = plain_images(message.images)
    return plain


def resolve_max_tokens(given: dict[str, Any]) -> dict[str, Any]:
    """Of a `limits` case: the resolved output limit, or the error."""
    request = CONVERTERS[given["protocol"]](
        json.dumps(given["body"]), conversion_options(given.get("options"))
    )
    try:
        return {"max_tokens": request.resolve_max_tokens(given["prompt_tokens"], given["context_limit"])}
    except ConversionError as error:
        return {"error": "ConversionError", "status_code": error.status_code, "body": error.body}
