"""Outputs parsed by the official codec, reduced to what its chunks say."""

from __future__ import annotations

import functools
import json
from typing import Any

from .official import peer
from .our_news import append

STAGES = {
    "ReasoningStart": peer.ThinkingInitialStage.ReasoningStart,
    "ReasoningContinuation": peer.ThinkingInitialStage.ReasoningContinuation,
    "ContentContinuation": peer.ThinkingInitialStage.ContentContinuation,
    None: None,
}
FINISH = {
    "Stop": peer.InferenceFinishReason.Stop,
    "Length": peer.InferenceFinishReason.Length,
    "ContentFilter": peer.InferenceFinishReason.ContentFilter,
}


@functools.cache
def _request(thinking: bool) -> Any:
    body = {
        "model": "DeepSeek-V4.1-Flash",
        "messages": [{"role": "user", "content": "x"}],
        "thinking": {"type": "enabled" if thinking else "disabled"},
    }
    return peer.ChatCompletionRequest(body).convert(peer.ConversionOptions())


def parsing_options(plain: dict[str, Any]) -> Any:
    keywords = dict(plain)
    keywords["thinking_initial_stage"] = STAGES[keywords.pop("thinking_start", None)]
    return peer.ParsingOptions(**keywords)


def processor(plain: dict[str, Any], tokenizer: Any = None) -> Any:
    """Reads one output and gives chat chunks."""
    request = _request(plain.get("thinking_start") is not None)
    generator = peer.ChatCompletionRequest.chunk_generator(request, "id", "model")
    return peer.StreamProcessor(generator, parsing_options(plain), tokenizer)


def parse(
    chunks: list[Any], plain: dict[str, Any], tokenizer: Any = None
) -> tuple[list[list[str]], str | None]:
    """(merged news, finish reason) of text pieces or lists of ids, ended by a Stop."""
    parser, events = processor(plain, tokenizer), []
    for chunk in [*chunks, None]:
        if parser.finished:
            break
        if chunk is None:
            events += parser.push(peer.InferenceChunk.finish(FINISH["Stop"]))
        elif isinstance(chunk, str):
            events += parser.push(peer.InferenceChunk.text(chunk))
        else:
            events += parser.push(peer.InferenceChunk.tokens(chunk))
    return news([json.loads(event.to_json()) for event in events])


def news(chunks: list[dict[str, Any]]) -> tuple[list[list[str]], str | None]:
    """What Chat chunks say, neighbouring pieces joined, and the finish reason."""
    said: list[list[str]] = []
    finish_reason = None
    for chunk in chunks:
        choice = chunk["choices"][0]
        delta = choice["delta"]
        finish_reason = choice["finish_reason"] or finish_reason
        for call in delta.get("tool_calls") or ():
            if call["function"].get("name") is not None:
                said.append(["call", call["function"]["name"]])
            append(said, "arguments", call["function"]["arguments"])
        append(said, "reasoning", delta.get("reasoning_content"))
        append(said, "content", delta.get("content"))
    return said, finish_reason
