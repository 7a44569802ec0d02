"""What random request bodies are made of, and how one is broken."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

Body = dict[str, Any]
Path = list[str | int]

PNG = "data:image/png;base64,AAAA"
SCALARS: list[Any] = [
    None, True, False, 0, 1, 2, -1, 17, 21, 255, 256, 2**32 - 1, 2**32, 2**63, 2**64,
    0.0, 0.5, 1.0, 1.5, 2.5, -0.5, 1e-7, "", "a", "json", "a b", "é" * 70, "x" * 129,
    "none", "auto", "required", "any", "high", "max", "zz", "1", "object", "https://x.test/a", "ftp://x", PNG,
    "data:image/bmp;base64,AAAA", "data:image/png;base64,!!", "x-anthropic-billing-header: a",
    [], {}, [[]], [{}], ["a"], ["a", ""], [1], {"type": "object"}, {"type": "zz"},
]  # fmt: skip
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")
SCHEMAS: list[Any] = [
    {"type": "object"},
    {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "number", "minimum": 1}}}},
    {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": ["null"]}}}}},
    {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {"type": "integer"}]}}},
    {"type": "object", "properties": {"a": {"$ref": "#/properties/a"}}},
    {},
    True,
    None,
    {"type": "object", "properties": {"a": {"type": "foo"}}},
]


def paths(value: Any, prefix: Path | None = None) -> list[Path]:
    """Every place in a body, the body itself excepted."""
    found: list[Path] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        path = [*(prefix or []), key]
        found.append(path)
        found += paths(inner, path)
    return found


def holder_of(body: Any, path: Path) -> Any:
    for key in path[:-1]:
        body = body[key]
    return body


def mutate(rng: random.Random, body: Body, donors: list[Any]) -> Body:
    """One change somewhere: deleted, replaced, repeated, swapped, or a piece of another body put in."""
    body = copy.deepcopy(body)
    places = paths(body)
    if not places:
        return body
    path = rng.choice(places)
    holder, key = holder_of(body, path), path[-1]
    action = rng.randrange(6)
    if action == 0:
        del holder[key]
    elif action == 1 and isinstance(holder, list):
        holder.insert(rng.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    elif action == 2 and isinstance(holder, list):
        rng.shuffle(holder)
    elif action == 3:
        holder[key] = copy.deepcopy(rng.choice(donors))
    elif action == 4 and isinstance(holder, dict):
        holder[rng.choice(_FIELDS)] = copy.deepcopy(rng.choice(SCALARS))
    else:
        holder[key] = copy.deepcopy(_like(rng, holder[key]))
    return body


_FIELDS = ("type", "role", "content", "name", "strict", "id", "text", "detail", "prefix", "description")


def _like(rng: random.Random, value: Any) -> Any:
    """Another value, mostly of the same type: wrong types are refused early and hide the rest."""
    same = [other for other in SCALARS if type(other) is type(value)]
    return rng.choice(same) if same and rng.random() < 0.8 else rng.choice(SCALARS)


def maybe(rng: random.Random, body: Body, key: str, value: Callable[[], Any], chance: float = 0.3) -> None:
    if rng.random() < chance:
        body[key] = value()


def common(rng: random.Random, body: Body) -> None:
    maybe(rng, body, "temperature", lambda: rng.choice([0, 0.3, 1, 2]), 0.2)
    maybe(rng, body, "top_p", lambda: rng.choice([0.1, 0.95, 0.97, 1]), 0.2)
    maybe(rng, body, "stream", lambda: rng.random() < 0.5, 0.3)


def text(rng: random.Random) -> str:
    return rng.choice(_TEXTS)


_TEXTS = ("hi", "", "json", "a\n\nb", "<｜User｜>", "<｜image｜>", "你好", "x-anthropic-billing-header: y")


def image_url(rng: random.Random) -> str:
    return rng.choice(["https://x.test/a.png", PNG, "HTTP://x", "data:image/jpg;base64,AA=="])
