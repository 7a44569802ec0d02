"""Random model outputs, dense in markers, and how to read them."""

from __future__ import annotations

import json
import random
import re
from typing import Any

FRAGMENTS = (
    "<think>", "</think>", "<｜DSML｜", " calls>", "tool_calls>", "<｜DSML｜ calls>\n", "</｜DSML｜",
    ' invoke name="', 'invoke name="f">', "f", '"', '">\n', "parameter name=", '"city"', ' string="true">',
    'string="false">', "12", '{"a":1}', "[1", "}", "\n", "\n\n", "hello", "x", " ", "```json\n", "\n```",
    "STOP", "ST", "é", "🦜𓂀", "</｜DSML｜ parameter>", "</｜DSML｜ invoke>", "</｜DSML｜ calls>", "<", "</",
    "｜DSML｜",
    '<｜DSML｜ parameter name="a" string="true">v</｜DSML｜ parameter>', '<｜DSML｜ invoke name="g">\n',
)  # fmt: skip
STOPS: tuple[list[str], ...] = (
    [], [], ["STOP"], ["\n\n"], ["x<"], ["TOP", "STOP"], ["k>", "hello"], ["ab", "aab"], ["</think>"],
)  # fmt: skip
STARTS = (None, "ReasoningStart", "ReasoningContinuation", "ContentContinuation")


def options(rng: random.Random) -> dict[str, Any]:
    return {
        "parse_tool_calls": rng.random() < 0.85,
        "starts_in_tool_calls": rng.random() < 0.1,
        "parse_json_output": rng.random() < 0.2,
        "thinking_start": rng.choice(STARTS),
        "stop_sequences": rng.choice(STOPS),
    }


def text(rng: random.Random) -> str:
    """Fragments in any order, or a plausible answer with calls."""
    if rng.random() < 0.6:
        return "".join(rng.choice(FRAGMENTS) for _ in range(rng.randrange(1, 23)))
    calls = "".join(_call(rng) for _ in range(rng.randrange(3)))
    block = f"\n\n<｜DSML｜ calls>\n{calls}</｜DSML｜ calls>" if calls else ""
    return f"{_prose(rng)}</think>{_prose(rng)}{block}"


def _prose(rng: random.Random) -> str:
    return "".join(
        rng.choice(["I ", "see.", "\n", "é", "你", "🦜", " < ", "a"]) for _ in range(rng.randrange(8))
    )


def _call(rng: random.Random) -> str:
    parameters = "".join(_parameter(rng, index) + "\n" for index in range(rng.randrange(3)))
    return f'<｜DSML｜ invoke name="f">\n{parameters}</｜DSML｜ invoke>\n'


def _parameter(rng: random.Random, index: int) -> str:
    if rng.random() < 0.5:
        value, kind = _prose(rng) + rng.choice(['"', "\\", "</", "\t", ""]), "true"
    else:
        value, kind = json.dumps(rng.choice([1, 1.5, None, True, [1, "a"], {"k": "é"}, "s"])), "false"
    return f'<｜DSML｜ parameter name="p{index}" string="{kind}">{value}</｜DSML｜ parameter>'


def pieces(rng: random.Random, whole: str) -> list[str]:
    """The text in one piece, in characters, or cut at random."""
    mode = rng.randrange(3)
    if mode == 0:
        return [whole]
    if mode == 1:
        return list(whole)
    cut, position = [], 0
    while position < len(whole):
        size = rng.randrange(1, 9)
        cut.append(whole[position : position + size])
        position += size
    return cut


News = list[list[str]]


def is_deliberate_difference(whole: str, ours: News, theirs: News) -> bool:
    """Whether the readings differ as `DIFFERENCES.md` lists (O1, O5)."""
    if "<\n" in whole or "</\n" in whole or not all(map(_is_json, arguments(theirs))):
        return True
    return _without_quotes(ours) == _without_quotes(theirs)  # a name that by accident is JSON itself


def _without_quotes(news: News) -> News:
    return [[kind, said.replace('"', "") if kind == "arguments" else said] for kind, said in news]


def arguments(news: list[list[str]]) -> list[str]:
    """The arguments of each call."""
    following = [*news, ["", ""]][1:]
    return [
        after[1] if after[0] == "arguments" else ""
        for (kind, _), after in zip(news, following, strict=True)
        if kind == "call"
    ]


def _is_json(text_of_arguments: str) -> bool:
    try:
        json.loads(text_of_arguments, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _refuse(name: str) -> None:
    raise ValueError(name)


def without_json_padding(news: list[list[str]]) -> list[list[str]]:
    """Runs of spaces in content as one (O6)."""
    return [[kind, re.sub(" +", " ", said) if kind == "content" else said] for kind, said in news]
