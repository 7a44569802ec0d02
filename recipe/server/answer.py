"""One request in the engine and its outputs: deltas in, events out, whatever the protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from stepahead import Delta, FinishReason

from ..protocols.events import Finish, ServerEvent
from ..stream import OutputStream
from .engine_like import EngineStream

Write = Callable[[bytes], Awaitable[None]]

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

    async def run(self, write: Write) -> None:
        """Writes the frames as they come, to the end. Leaving early ends the request in the engine."""
        outputs, push = self._outputs, self._push
        unfinished = len(outputs)
        try:
            async for delta in self._stream:
                output = outputs[delta.index]
                if output.finished:
                    continue  # a stop sequence ended this choice; others still run
                events = push(output, delta)
                if events:
                    await write(frames(events))
                if output.finished:
                    unfinished -= 1
                    if not unfinished:
                        return
        finally:
            await self._stream.aclose()

    def _push(self, output: OutputStream, delta: Delta) -> list[ServerEvent]:
        logprobs = None if delta.logprobs is None else [(item.logprob, item.top) for item in delta.logprobs]
        events = output.push_tokens(delta.token_ids, logprobs) if delta.token_ids else []
        if delta.finish_reason is not None and not output.finished:
            if delta.usage is not None:
                output.cached_tokens = delta.usage.cached_tokens
            events += output.finish(_FINISH[delta.finish_reason])
        return events


def frames(events: list[ServerEvent]) -> bytes:
    """As they are sent."""
    return events[0].frame() if len(events) == 1 else b"".join([event.frame() for event in events])
