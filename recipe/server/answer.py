"""One request in the engine and its outputs: deltas in, events out, whatever the protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from stepahead import Delta, FinishReason

from ..protocols.events import Finish, ServerEvent
from ..stream import OutputStream, TokenLogprob
from .engine_like import EngineStream

# What ends early for a reason of ours is cut short as far as the reader is concerned.
_FINISH = {
    FinishReason.STOP: Finish.STOP,
    FinishReason.LENGTH: Finish.LENGTH,
    FinishReason.DEADLINE: Finish.LENGTH,
    FinishReason.ABORT: Finish.LENGTH,
}


class Answer:
    """Reads one engine stream into one output stream per choice."""

    def __init__(self, stream: EngineStream, outputs: Sequence[OutputStream], prompt_tokens: int) -> None:
        self._stream, self._outputs, self._prompt_tokens = stream, outputs, prompt_tokens

    def begin(self) -> list[ServerEvent]:
        """What is said before the first token: sent at once, a prefill may be long."""
        return [event for output in self._outputs for event in output.begin(self._prompt_tokens)]

    async def news(self) -> AsyncIterator[list[ServerEvent]]:
        """Events as they come, to the end. Leaving early ends the request in the engine."""
        unfinished = len(self._outputs)
        try:
            async for delta in self._stream:
                output = self._outputs[delta.index]
                if output.finished:
                    continue  # a stop sequence ended this choice; others still run
                events = self._push(output, delta)
                if events:
                    yield events
                unfinished -= output.finished
                if not unfinished:
                    return
        finally:
            await self._stream.aclose()

    def _push(self, output: OutputStream, delta: Delta) -> list[ServerEvent]:
        events = output.push_tokens(delta.token_ids, _logprobs(delta)) if delta.token_ids else []
        if delta.finish_reason is not None and not output.finished:
            if delta.usage is not None:
                output.cached_tokens = delta.usage.cached_tokens
            events += output.finish(_FINISH[delta.finish_reason])
        return events

    async def read(self) -> None:
        """Everything, for a complete response."""
        self.begin()
        async for _ in self.news():
            pass


def _logprobs(delta: Delta) -> list[TokenLogprob] | None:
    if delta.logprobs is None:
        return None
    return [(item.logprob, item.top) for item in delta.logprobs]
