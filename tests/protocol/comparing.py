"""Generated cases, ours beside the official codec's: equal, a listed difference, or a finding.

Tests run some hundreds of these, `scripts/bench recipe --differential` tens of thousands.
"""

from __future__ import annotations

import functools
import json
import random
from enum import Enum
from typing import Any

from stepahead.recipe.encoding import v4, v41
from stepahead.recipe.encoding.encoder import PromptEncoder

from . import golden, official, official_convert, official_stream, our_news, output_cases, request_mutations
from .v4_vocabulary import vocabulary

RENDERERS = {"v4": v4.render, "v4.1": v41.render}


class Verdict(Enum):
    EQUAL = "equal"
    WORDING = "wording"
    """Refused by both for the same kind of reason, in words that are not compared (R1, R3, R7)."""
    LISTED = "listed"
    """Different as `recipe/DIFFERENCES.md` says."""
    DIFFERENT = "different"


Comparison = tuple[Verdict, Any]
"""The verdict, and what to look at where it is `DIFFERENT`."""


def _same(ours: Any, theirs: Any, *case: Any) -> Comparison:
    return (Verdict.EQUAL, None) if ours == theirs else (Verdict.DIFFERENT, (case, ours, theirs))


def prompt(plain: dict[str, Any]) -> Comparison:
    """Text, ranges of special tokens and images, of both versions."""
    theirs, mine = official.conversation(plain), golden.conversation(plain)
    expected, rendered = {}, {}
    for version, render in RENDERERS.items():
        peer, own = official.ENCODINGS[version]().render_conversation(theirs), render(mine)
        images = [official.plain_image(source) for source in peer.image_sources]
        expected[version] = (peer.prompt, peer.special_ranges, images)
        rendered[version] = (own.prompt, own.special_ranges, golden.plain_images(own.image_sources))
    return _same(rendered, expected, plain)


@functools.cache
def _encoder(version: str) -> PromptEncoder:
    return PromptEncoder(vocabulary(), version)


def token_ids(plain: dict[str, Any]) -> Comparison:
    """Ids of both versions, over the real vocabulary."""
    theirs, mine = official.conversation(plain), golden.conversation(plain)
    expected = {version: official.encoding(version).encode(theirs) for version in RENDERERS}
    encoded = {version: _encoder(version).encode(_encoder(version).render(mine)) for version in RENDERERS}
    return _same({version: ids.tolist() for version, ids in encoded.items()}, expected, plain)


def request(rng: random.Random, protocol: str) -> Comparison:
    """Whether a body is accepted, the conversation and every option; of a refusal its status and body."""
    body, options = request_mutations.case(rng, protocol)
    theirs = official_convert.convert(protocol, body, options)
    ours = golden.convert(protocol, body, options)
    if ours == theirs:
        return Verdict.EQUAL, None
    wording = _wording_of(ours)
    if wording and wording == _wording_of(theirs):
        return Verdict.WORDING, None
    if ours.get("error") == "ValueError" and _is_accident_of_the_parser(ours):
        return Verdict.LISTED, None
    return _same(ours, theirs, body, options)


_OUR_WORDS = (
    "Invalid tool parameters schema : ",
    "Invalid json schema: ",
    "No tool output found for tool call ",
)


def _wording_of(result: dict[str, Any]) -> str:
    """The kind of an error whose wording is not compared, or ""."""
    if result.get("error") == "ValueError":
        return "shape"
    if result.get("error") == "ConversionError":
        message = json.loads(result["body"])["error"]["message"]
        return next((words for words in _OUR_WORDS if message.startswith(words)), "")
    return ""


def _is_accident_of_the_parser(ours: dict[str, Any]) -> bool:
    """R2: an array for an object, a number or an object for an enumeration."""
    message = ours.get("message", "")
    return any(part in message for part in ("Expected `object`, got `array`", "Expected `str`", "a string"))


def text_output(rng: random.Random) -> Comparison:
    """What the chunks of an output say, the output cut anywhere."""
    plain, whole = output_cases.options(rng), output_cases.text(rng)
    pieces = output_cases.pieces(rng, whole)
    theirs, _ = official_stream.parse(pieces, plain)
    return _same_news(our_news.parse(pieces, plain), theirs, whole, plain)


def token_output(rng: random.Random) -> Comparison:
    """The same of tokens: markers as special tokens or spelled, characters over several tokens."""
    plain, whole = output_cases.options(rng), output_cases.text(rng)
    plain["stop_sequences"] = [stop for stop in plain["stop_sequences"] if not set("<>") & set(stop)]  # O8
    ids = vocabulary().tokenizer.encode_many([whole], literal=rng.random() < 0.3)[0]
    ids = ids[1:] if ids[:1] == [0] else ids
    cut = rng.randrange(len(ids) + 1)
    chunks = [[token] for token in ids] if rng.random() < 0.5 else [ids[:cut], ids[cut:]]
    theirs, _ = official_stream.parse(chunks, plain, official.tokenizer())
    return _same_news(our_news.parse_tokens(chunks, plain, vocabulary()), theirs, whole, plain)


def _same_news(ours: list[list[str]], theirs: list[list[str]], whole: str, plain: Any) -> Comparison:
    ours, theirs = output_cases.without_json_padding(ours), output_cases.without_json_padding(theirs)
    if ours != theirs and output_cases.is_deliberate_difference(whole, ours, theirs):
        return Verdict.LISTED, None
    return _same(ours, theirs, whole, plain)
