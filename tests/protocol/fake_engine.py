"""An engine that says what a test wants, token by token, with the built-in vocabulary."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import stepahead
from stepahead import Delta, FinishReason, Health, HealthState, SamplingParams, Stats, TokenLogprob, Usage
from stepahead.engine.speculation_stats import SpeculationStats
from stepahead.engine.text.tokenizer import Tokenizer
from stepahead.engine.timings import Histogram, Timings


@functools.cache
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(Path(stepahead.engine.__file__).parent / "nano")


class Script:
    """One choice: its text, markers spelled, and how it ends."""

    def __init__(
        self,
        text: str = "",
        finish: FinishReason = FinishReason.STOP,
        *,
        token_ids: Sequence[int] | None = None,
        error: Exception | None = None,
    ) -> None:
        self.finish, self.error = finish, error
        self.token_ids = tokenizer().encode(text)[1:] if token_ids is None else list(token_ids)


class FakeStream:
    """One request. `gate` lets a test hold it before its first token."""

    def __init__(
        self, engine: FakeEngine, scripts: Sequence[Script], prompt: Any, params: SamplingParams
    ) -> None:
        self._engine, self._scripts, self._prompt, self._params = engine, scripts, prompt, params
        self.closing = asyncio.Event()
        self._deltas = self._generate()

    @property
    def closed(self) -> bool:
        return self.closing.is_set()

    async def start(self) -> FakeStream:
        if self._engine.refusal is not None:
            raise self._engine.refusal
        return self

    def __aiter__(self) -> AsyncGenerator[Delta, None]:
        return self._deltas

    async def aclose(self) -> None:
        self.closing.set()
        await self._deltas.aclose()

    async def _generate(self) -> AsyncGenerator[Delta, None]:
        wants_logprobs = self._params.logprobs is not None
        for index, script in enumerate(self._scripts[: self._params.n]):
            ids = script.token_ids[: self._params.max_tokens]
            for token in ids:
                await self._engine.turn()
                logprobs = (
                    (TokenLogprob(token, -0.5, ((token, -0.5), (token + 1, -1.5))),)
                    if wants_logprobs
                    else None
                )
                yield Delta(text="", token_ids=(token,), index=index, logprobs=logprobs)
            if script.error is not None:
                raise script.error
            cut = len(ids) < len(script.token_ids)
            yield Delta(
                text="",
                token_ids=(),
                index=index,
                finish_reason=FinishReason.LENGTH if cut else script.finish,
                usage=self._usage(len(ids)),
            )

    def _usage(self, output: int) -> Usage:
        return Usage(
            prompt_tokens=len(self._prompt),
            cached_tokens=len(self._prompt) // 2,
            output_tokens=output,
            drafted_tokens=0,
            accepted_tokens=0,
            preemptions=0,
            queue_seconds=0.0,
            first_token_seconds=0.0,
        )


class FakeEngine:
    """Answers every request with the next of `scripts`, the last one for ever."""

    def __init__(self, *scripts: Script | Sequence[Script]) -> None:
        self.scripts: list[Sequence[Script]] = [
            [script] if isinstance(script, Script) else script for script in scripts or (Script("ok"),)
        ]
        self.tokenizer = tokenizer()
        self.refusal: Exception | None = None
        self.gate: asyncio.Event | None = None
        self.prompts: list[list[int]] = []
        self.params: list[SamplingParams] = []
        self.salts: list[str] = []
        self.kept_as: list[tuple[str, str]] = []
        self.streams: list[FakeStream] = []
        self.on_stream: Callable[[], None] = lambda: None

    def stream(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        request_id: str,
        cache_salt: str,
        session: str = "",
        retention: str = "chat",
    ) -> FakeStream:
        assert prompt.dtype == np.int32
        self.prompts.append(prompt.tolist())
        self.params.append(params)
        self.salts.append(cache_salt)
        self.kept_as.append((session, retention))
        scripts = self.scripts.pop(0) if len(self.scripts) > 1 else self.scripts[0]
        self.streams.append(FakeStream(self, scripts, prompt, params))
        self.on_stream()
        return self.streams[-1]

    async def turn(self) -> None:
        """One token's time."""
        await (asyncio.sleep(0) if self.gate is None else self.gate.wait())

    def prompt_text(self, index: int = -1) -> str:
        return self.tokenizer.decode(self.prompts[index], skip_special_tokens=False)

    def health(self) -> Health:
        return Health(state=HealthState.READY)

    def stats(self) -> Stats:
        """Of an engine that has done nothing."""
        timings = Timings(
            **{name: Histogram(bounds=(1.0,), counts=(0, 0), total=0.0) for name in Timings.__struct_fields__}
        )
        numbers = dict.fromkeys(Stats.__struct_fields__, 0)
        structs = {"mailboxes": {}, "timings": timings, "speculation": SpeculationStats(), "graphs": None}
        return Stats(**numbers | structs)  # type: ignore[arg-type]
