"""Reads the stored outputs of the official codec and normalises what is different on every run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec

from stepahead.recipe import conversation as ours
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
