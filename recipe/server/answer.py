"""One request in the engine and its outputs: deltas in, events out, whatever the protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from stepahead import Delta, FinishReason

from ..protocols.events import Finish, frames
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

    def begin(self) -> bytes:
        """What is said before the first token: sent at once, a prefill may be long."""
        return b"".join([frames(output.begin(self._prompt_tokens)) for output in self._outputs])

    async def run(self, write: Write) -> None:
        """Writes the frames as they come, to the end. Leaving early ends the request in the engine."""
        outputs, push = self._outputs, self._push
        unfinished = len(outputs)
        try:
            async for delta in self._stream:
                output = outputs[delta.index]
                if output.finished:
                    continue  # a stop sequence ended this choice; others still run
                frame = push(output, delta)
                if frame:
                    await write(frame)
                if output.finished:
                    unfinished -= 1
                    if not unfinished:
                        return
        finally:
            await self._stream.aclose()

    def _push(self, output: OutputStream, delta: Delta) -> bytes:
        logprobs = None if delta.logprobs is None else [(item.logprob, item.top) for item in delta.logprobs]
        frame = output.push_frames(delta.token_ids, logprobs) if delta.token_ids else b""
        if delta.finish_reason is not None and not output.finished:
            if delta.usage is not None:
                output.cached_tokens = delta.usage.cached_tokens
            frame += frames(output.finish(_FINISH[delta.finish_reason]))
        return frame
