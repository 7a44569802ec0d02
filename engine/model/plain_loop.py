"""One sequence at a time, token after token, straight over the model.

No scheduler, no batch, no speculation: the shortest correct way from a prompt to an answer. It serves the
command line and is a yardstick for the engine, whose output for one greedy request must be the same. Its
caches are made for one sequence and forgotten with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from stepahead.engine.errors import (
    EmptyPromptError,
    EngineError,
    PromptTooLongError,
    TokenOutOfVocabularyError,
)
from stepahead.engine.text.compressed_vocabulary import compressed_token_ids
from stepahead.engine.text.tokenizer import Tokenizer

from .checkpoint.dummy import DummyReader
from .checkpoint.layout import tensor_specs
from .checkpoint.reader import CheckpointReader
from .v41.batch import Batch, SequenceChunk, build_batch
from .v41.caches import Caches, CacheShape
from .v41.config import ModelConfig, load_config
from .v41.model import Model
from .v41.numerics import exact
from .v41.rows import BLOCK_TOKENS
from .v41.weights import TensorSource, load_weights

CHUNK_ROWS = 512
_SLOT = 1  # state slot 0 and block 0 are scratch


class ModelFilesError(EngineError):
    """A folder that does not hold a model this engine runs; the cause says what is wrong."""

    def __init__(self, folder: Path, problem: Exception) -> None:
        super().__init__(f"cannot open a model in {folder}: {problem}")
        self.folder = folder


@dataclasses.dataclass(frozen=True)
class OpenModel:
    """A model in memory with the vocabulary it speaks."""

    config: ModelConfig
    tokenizer: Tokenizer
    model: Model


OnTensor = Callable[[int, int], None]
"""Called while weights load with the number of tensors read so far and in all."""


class _ReportingSource:
    """Passes tensors through and tells how far the loading is."""

    def __init__(self, source: TensorSource, total: int, on_tensor: OnTensor) -> None:
        self._source, self._total, self._on_tensor, self._done = source, total, on_tensor, 0

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        tensor = self._source.read(name, dtype)
        self._done += 1
        self._on_tensor(self._done, self._total)
        return tensor

    def __contains__(self, name: str) -> bool:
        return name in self._source


def open_model(
    folder: Path,
    *,
    random_weights: bool = False,
    dtype: torch.dtype = torch.float32,
    on_tensor: OnTensor = lambda done, total: None,
) -> OpenModel:
    """Load configuration, vocabulary and weights on the CPU, computing in `dtype` throughout.

    With `random_weights` only the first two are read from the folder. Raises `ModelFilesError`.
    """
    try:
        config = load_config(folder)
        tokenizer = Tokenizer.from_file(folder, compatibility=config.tokenizer_compatibility)
        source = DummyReader(config) if random_weights else _checkpoint(folder, config)
    except (OSError, ValueError) as error:
        raise ModelFilesError(folder, error) from error
    numerics = exact(dtype)
    reporting = _ReportingSource(source, len(source.names()), on_tensor)
    weights = load_weights(config, reporting, numerics, torch.device("cpu"))
    model = Model(config, weights, numerics, token_map=_token_map(config, tokenizer))
    return OpenModel(config, tokenizer, model)


def _checkpoint(folder: Path, config: ModelConfig) -> CheckpointReader:
    reader = CheckpointReader(folder)
    reader.verify(tensor_specs(config), allow_unquantized=True)
    return reader


def _token_map(config: ModelConfig, tokenizer: Tokenizer) -> Tensor | None:
    """Compressed ids for the n-gram memory. Ids without a token (a padded embedding) count as padding."""
    if not config.engram_layer_ids or not config.engram_compressed_vocab_size:
        return None
    ids = torch.from_numpy(compressed_token_ids(tokenizer))
    padded = ids[config.engram_pad_token_id].repeat(max(config.vocab_size, len(ids)))
    padded[: len(ids)] = ids
    return padded


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
