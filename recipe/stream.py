"""One output of the engine as the events of a protocol: decode, parse, write, count.

This is the whole way of an output through this package. The engine's side pushes tokens (or text, where the
tokens are not known) and says why it ended; the client's side gets events, or the complete response.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from .parsing.events import OutputEvent, StopMatched, merge_neighbours
from .parsing.options import ParsingOptions
from .parsing.parser import BY_ID, OutputParser
from .parsing.token_text import TokenText
from .protocols.events import Finish, Logprob, ServerEvent, TopLogprob, Usage, Writer, frames
from .vocabulary import Vocabulary

TokenLogprob = tuple[float, Sequence[tuple[int, float]]]
"""Of one emitted token: its log probability, and the best alternatives as (id, log probability)."""


class OutputStream:
    """One output. After `finished` nothing more is accepted or said.

    With a vocabulary, tokens are pushed and markers are known by id; without one, text, and by spelling.
    """

    def __init__(
        self,
        writer: Writer,
        options: ParsingOptions,
        vocabulary: Vocabulary | None = None,
        *,
        merge: bool = False,
        top_logprobs: int | None = None,
    ) -> None:
        """`merge`: one event for neighbouring pieces of one push, which is less to send.

        `top_logprobs`: report the log probabilities that are pushed, with at most so many alternatives; None
        reports none.
        """
        self._writer, self._vocabulary, self._merge = writer, vocabulary, merge
        self._parser = OutputParser(options, None if vocabulary is None else BY_ID)
        self._decoder = None if vocabulary is None else TokenText(vocabulary)
        self._one_by_one = bool(options.stop_sequences) or top_logprobs is not None
        self._top_logprobs = top_logprobs
        self._pending: list[Logprob] = []  # of tokens whose text has not been shown
        self._markers = () if vocabulary is None else (vocabulary.dsml_id, vocabulary.thinking_end_id)
        self._begun = False
        self._usage = Usage(reasoning_tokens=0 if self._counts_reasoning(options) else None)
        self._output_tokens = self._reasoning_tokens = 0
        self.finished = False
        self.cached_tokens: int | None = None
        """Prompt tokens that came from a cache, where that is known only at the end."""

    def _counts_reasoning(self, options: ParsingOptions) -> bool:
        return self._vocabulary is not None and options.thinking_start is not None

    def begin(
        self, prompt_tokens: int = 0, cached_tokens: int = 0, fingerprint: str | None = None
    ) -> list[ServerEvent]:
        """What is said before any output. Without a call it is said with the first push."""
        if self._begun:
            return []
        self._begun = True
        self._usage = msgspec.structs.replace(
            self._usage, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens
        )
        return self._writer.begin(self._usage, fingerprint)

    def push_text(self, text: str, token_count: int = 0) -> list[ServerEvent]:
        """Text that `token_count` tokens stand for."""
        if self.finished:
            return []
        events = self.begin()
        self._output_tokens += token_count
        return events + self._parsed(self._parser.push(text))

    def push_tokens(
        self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None
    ) -> list[ServerEvent]:
        """Tokens in the order they were emitted. Raises `ValueError` without a vocabulary."""
        if self._decoder is None:
            raise ValueError("tokens were pushed to a stream without a vocabulary")
        if self.finished:
            return []
        if self._begun and not self._one_by_one:
            return self._push(self._decoder, token_ids)
        events = self.begin()
        if not self._one_by_one:
            return events + self._push(self._decoder, token_ids)
        for position, token in enumerate(token_ids):
            if logprobs is not None and self._top_logprobs is not None:
                self._pending.append(self._logprob(token, logprobs[position]))
            shown = self._push(self._decoder, (token,))
            if not shown and token in self._markers:
                self._pending.clear()  # of the marker and what it swallowed: nobody sees them
            events += shown
            if self.finished:
                break
        return events

    def push_frames(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob] | None = None) -> bytes:
        """The same, as it is sent. For the usual chunk, some text and nothing else, this is the short way."""
        if self._decoder is None or self._one_by_one or self.finished or not self._begun:
            return frames(self.push_tokens(token_ids, logprobs))
        text = self._decoded(self._decoder, token_ids)
        plain = self._parser.plain(text)
        if plain is not None:
            return self._writer.frame(plain, text)
        return frames(self._parsed(self._parser.push(text)))

    def _push(self, decoder: TokenText, token_ids: Sequence[int]) -> list[ServerEvent]:
        return self._parsed(self._parser.push(self._decoded(decoder, token_ids)))

    def _decoded(self, decoder: TokenText, token_ids: Sequence[int]) -> str:
        """The text of counted tokens."""
        self._output_tokens += len(token_ids)
        if self._parser.in_reasoning:
            self._reasoning_tokens += self._reasoning_part(token_ids)
        return decoder.push(token_ids)

    def _reasoning_part(self, token_ids: Sequence[int]) -> int:
        """How many of the tokens come before the one that ends the reasoning."""
        end = None if self._vocabulary is None else self._vocabulary.thinking_end_id
        return token_ids.index(end) if end in token_ids else len(token_ids)

    def _parsed(self, events: list[OutputEvent]) -> list[ServerEvent]:
        if not events:
            return []
        if self._merge and len(events) > 1:
            events = merge_neighbours(events)
        last = events[-1]
        if type(last) is StopMatched:
            return self._write(events[:-1]) + self._end(Finish.STOP, last.sequence)
        return self._write(events)

    def _write(self, events: list[OutputEvent]) -> list[ServerEvent]:
        if not self._pending:
            return self._writer.write(events)
        logprobs, self._pending = self._pending, []
        return self._writer.write(events, logprobs)

    def finish(self, reason: Finish) -> list[ServerEvent]:
        """The engine is done."""
        if self.finished:
            return []
        events = self.begin()
        if self._decoder is not None:
            events += self._parsed(self._parser.push(self._decoder.finish()))
        if not self.finished:
            events += self._parsed(self._parser.finish())
        if not self.finished:
            events += self._end(reason, None)
        return events

    def _end(self, reason: Finish, stop_sequence: str | None) -> list[ServerEvent]:
        self.finished = True
        return self._writer.end(reason, self.usage, stop_sequence)

    @property
    def usage(self) -> Usage:
        """Tokens so far. Reasoning is counted as sampled, newlines and all, not by encoding it again."""
        counts = self._usage.reasoning_tokens is not None
        cached = self._usage.cached_tokens if self.cached_tokens is None else self.cached_tokens
        return msgspec.structs.replace(
            self._usage,
            cached_tokens=cached,
            output_tokens=self._output_tokens,
            reasoning_tokens=self._reasoning_tokens if counts else None,
        )

    def _logprob(self, token: int, logprob: TokenLogprob) -> Logprob:
        chosen, alternatives = logprob
        top = [
            TopLogprob(self._spelled(other), _finite(value), list(self._bytes(other)))
            for other, value in alternatives[: self._top_logprobs]
        ]
        return Logprob(self._spelled(token), _finite(chosen), list(self._bytes(token)), top)

    def _bytes(self, token: int) -> bytes:
        pieces = () if self._vocabulary is None else self._vocabulary.pieces
        return pieces[token] if 0 <= token < len(pieces) else b""

    def _spelled(self, token: int) -> str:
        """The token's text; bytes that are no text as `\\xNN`."""
        return self._bytes(token).decode(errors="backslashreplace")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
