"""One sequence at a time, token after token, straight over the model.

No scheduler, no batch, no speculation: the shortest correct way from a prompt to an answer. It is the
yardstick for the engine, whose output for one greedy request must be the same. Its caches are made for one
sequence and forgotten with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from stepahead.engine.errors import EmptyPromptError, PromptTooLongError, TokenOutOfVocabularyError

from .v41.batch import Batch, SequenceChunk, build_batch
from .v41.caches import Caches, CacheShape
from .v41.config import ModelConfig
from .v41.model import Model
from .v41.rows import BLOCK_TOKENS

CHUNK_ROWS = 512
_SLOT = 1  # state slot 0 and block 0 are scratch


def generate(
    model: Model, prompt: Sequence[int], *, max_tokens: int, temperature: float = 0.0, seed: int = 0
) -> Iterator[int]:
    """Yield up to `max_tokens` token ids, ending early at the end-of-text token (not yielded).

    Temperature 0 takes the most likely token. Raises the engine's errors for an empty prompt, an id outside
    the vocabulary, or a prompt that leaves no room in the context.
    """
    room = _room(model.config, prompt)
    steps = _Steps(model, len(prompt) + min(max_tokens, room))
    generator = torch.Generator().manual_seed(seed)
    logits = steps.feed_prompt(prompt) if max_tokens > 0 else torch.empty(0)
    for produced in range(1, min(max_tokens, room) + 1):
        token = _choose(logits, temperature, generator)
        if token == model.config.eos_token_id:
            return
        yield token
        if produced < min(max_tokens, room):
            logits = steps.feed((token,))


def _room(config: ModelConfig, prompt: Sequence[int]) -> int:
    if not prompt:
        raise EmptyPromptError
    for position, token in enumerate(prompt):
        if not 0 <= token < config.vocab_size:
            raise TokenOutOfVocabularyError(position, token, config.vocab_size)
    room = config.max_position_embeddings - len(prompt)
    if room < 1:
        raise PromptTooLongError(len(prompt), config.max_position_embeddings)
    return room


def _choose(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax((logits - logits.max()) / temperature, dim=-1)
    return int(torch.multinomial(probabilities, 1, generator=generator))


class _Steps:
    """The caches of one sequence and what it has seen."""

    def __init__(self, model: Model, length: int) -> None:
        blocks = -(-length // BLOCK_TOKENS)
        rows = min(CHUNK_ROWS, length)
        self._model = model
        self._caches: Caches = model.new_caches(CacheShape(blocks=1 + blocks, state_slots=2, max_rows=rows))
        self._rows, self._table = rows, range(1, 1 + blocks)
        self._tokens: list[int] = []

    def feed_prompt(self, prompt: Sequence[int]) -> Tensor:
        """Logits `[vocab]` after the prompt, computed in chunks."""
        logits = torch.empty(0)
        for start in range(0, len(prompt), self._rows):
            logits = self.feed(prompt[start : start + self._rows])
        return logits

    def feed(self, tokens: Sequence[int]) -> Tensor:
        """Logits `[vocab]` after these tokens."""
        chunk = SequenceChunk(tokens, len(self._tokens), _SLOT, self._table, history=self._tokens[-3:])
        batch = build_batch([chunk], self._model.device, ngram=self._model.config.engram_max_ngram_size)
        self._tokens.extend(tokens)
        return self._model.forward(_last_row_only(batch), self._caches).logits[0]


def _last_row_only(batch: Batch) -> Batch:
    last = torch.tensor([batch.rows.count - 1], device=batch.token_ids.device)
    return dataclasses.replace(batch, logit_rows=last)
