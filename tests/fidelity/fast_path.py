"""The engine's model behind the interface that the fidelity tests speak: sessions that are fed tokens.

A session is one sequence. Feeding appends tokens and returns the logits of the new rows, rolling back forgets
the last ones, and several sessions may be fed in one step. What a scheduler does with blocks, slots and chunk
descriptions is done here with the fewest lines, and on purpose untidily: block tables are shuffled and unused
cache memory is filled with noise, so that a read from a wrong place cannot look right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from stepahead.engine.model.v41.batch import (
    NOT_TEXT,
    Batch,
    ImageRows,
    SequenceChunk,
    Truncation,
    build_batch,
)
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import Numerics, exact
from stepahead.engine.model.v41.rows import BLOCK_TOKENS
from stepahead.engine.model.v41.weights import TensorSource, load_weights

from .oracle import Draft, ImageSpan

CPU = torch.device("cpu")


@dataclass(frozen=True)
class NamedTensors:
    """A weight source over a dictionary."""

    tensors: Mapping[str, Tensor]

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        return self.tensors[name].to(dtype)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors


class Recorder:
    """Keeps what the model shows its probe: `recorder["streams", 3]`, rows of all steps in order."""

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, int], list[Tensor]] = {}

    def __call__(self, name: str, layer_id: int, tensor: Tensor) -> None:
        self._tensors.setdefault((name, layer_id), []).append(tensor.clone())

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._tensors

    def __getitem__(self, key: tuple[str, int]) -> np.ndarray:
        return torch.cat(self._tensors[key]).numpy()

    def lists(self, name: str, layer_id: int) -> list[list[int]]:
        """Rows of an index tensor that is padded with -1."""
        return [[int(x) for x in row if x >= 0] for step in self._tensors[name, layer_id] for row in step]


@dataclass(frozen=True)
class Fed:
    """Logits of the rows that a feed produced; a truncated prompt produces fewer rows than it has tokens."""

    positions: list[int]
    logits: np.ndarray  # [rows, vocab]


@dataclass
class Session:
    """One sequence: what is cached for it and where."""

    model: FastModel
    slot: int
    table: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    prompt_length: int | None = None  # tokens below belong to the prompt and are truncated with it
    window_floor: int = 0
    entry_floor: int = 0
    image: ImageSpan | None = None

    @property
    def length(self) -> int:
        return len(self.tokens)

    def feed(self, tokens: Sequence[int], probe: Recorder | None = None) -> Fed:
        return self.model.step([(self, tokens)], probe)[0]

    def feed_in_chunks(
        self, tokens: Sequence[int], lengths: Iterable[int], probe: Recorder | None = None
    ) -> Fed:
        """Feed `tokens` cut into pieces of these lengths, and the rest as a last piece."""
        rows, start = [], 0
        for length in [*lengths, len(tokens)]:
            piece = tokens[start : start + length]
            start += len(piece)
            if piece:
                rows.append(self.feed(piece, probe))
        positions = [p for fed in rows for p in fed.positions]
        return Fed(positions, np.concatenate([fed.logits for fed in rows]))

    def rollback(self, count: int) -> None:
        """Forget the last `count` tokens; nothing in the caches is touched."""
        del self.tokens[self.length - count :]

    def draft(self, golden_token: int, forced: Sequence[int] = ()) -> Draft:
        return self.model.draft([(self, golden_token)], forced)[0]

    def branch(self, length: int) -> Session:
        """A new sequence with the first `length` tokens in common, sharing their blocks and nothing else."""
        assert length % BLOCK_TOKENS == 0
        other = self.model.session(prompt_length=self.prompt_length)
        other.table = self.table[: length // BLOCK_TOKENS]
        other.tokens = self.tokens[:length]
        return other


class FastModel:
    """The engine's model with its caches and a free list."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, Tensor] | TensorSource,
        numerics: Numerics | None = None,
        *,
        truncation: Truncation | None = None,
        token_map: Sequence[int] | None = None,
        blocks: int = 24,
        slots: int = 9,
        max_rows: int = 512,
    ) -> None:
        self.numerics = exact(torch.float64) if numerics is None else numerics
        self.config, self.truncation = config, truncation
        self.source = NamedTensors(weights) if isinstance(weights, Mapping) else weights
        loaded = load_weights(config, self.source, self.numerics, CPU)
        mapped = None if token_map is None else torch.tensor(token_map)
        self.model = Model(config, loaded, self.numerics, token_map=mapped)
        if truncation is not None:
            self.model.check_truncation(truncation)
        self.caches = self.model.new_caches(CacheShape(blocks=blocks, state_slots=slots, max_rows=max_rows))
        self.reset()

    def reset(self) -> None:
        """Take all blocks and slots back; sessions opened before are dead."""
        shape = self.caches.shape
        order = np.random.default_rng(5).permutation(np.arange(1, shape.blocks))
        self._free_blocks = [int(b) for b in order]
        self._free_slots = list(range(shape.state_slots - 1, 0, -1))
        self._fill_with_noise()

    def _fill_with_noise(self) -> None:
        pools = [*self.caches.window, *self.caches.groups.values()]
        pools += [*self.caches.entries.values(), *self.caches.index_keys.values()]
        generator = torch.Generator().manual_seed(6)
        for pool in pools:
            pool.copy_(torch.randn(pool.shape, generator=generator, dtype=torch.float64))

    def session(self, *, prompt_length: int | None = None, image: ImageSpan | None = None) -> Session:
        return Session(self, self._free_slots.pop(), prompt_length=prompt_length, image=image)

    def fresh_session(self, *, prompt_length: int | None = None, image: ImageSpan | None = None) -> Session:
        """The only session, in caches full of noise."""
        self.reset()
        return self.session(prompt_length=prompt_length, image=image)

    def step(
        self, feeds: Sequence[tuple[Session, Sequence[int]]], probe: Recorder | None = None
    ) -> list[Fed]:
        """One forward over the next tokens of several sessions."""
        chunks = [self._chunk(session, tokens) for session, tokens in feeds]
        for session, tokens in feeds:
            session.tokens.extend(tokens)
        batch = build_batch(
            chunks, CPU, ngram=self.config.engram_max_ngram_size, truncation=self.truncation,
            images=self._images(feeds),
        )  # fmt: skip
        logits = self.model.forward(batch, self.caches, probe).logits.numpy()
        return _by_sequence(batch, logits, len(feeds))

    def draft(self, rounds: Sequence[tuple[Session, int]], forced: Sequence[int] = ()) -> list[Draft]:
        """One draft round for several sessions; `forced` replaces the first choices of each."""
        newest = torch.tensor([token for _, token in rounds])
        anchor = torch.tensor([session.length - 1 for session, _ in rounds])
        slots = torch.tensor([session.slot for session, _ in rounds])
        draft_pass = self.model.draft(newest, anchor, slots, self.caches)
        if not forced:
            drafts = draft_pass.greedy(newest)
            return [
                Draft(t.tolist(), lg.numpy(), c.tolist())
                for t, lg, c in zip(drafts.tokens, drafts.logits, drafts.confidence, strict=True)
            ]
        previous, logits, confidences, tokens = newest, [], [], []
        for place in range(draft_pass.block):
            logits.append(draft_pass.logits(place, previous))
            confidences.append(draft_pass.confidence(place, previous))
            chosen = logits[-1].argmax(-1)
            previous = torch.full_like(chosen, forced[place]) if place < len(forced) else chosen
            tokens.append(previous)
        stacked = [torch.stack(x, 1) for x in (tokens, logits, confidences)]
        return [Draft(t.tolist(), lg.numpy(), c.tolist()) for t, lg, c in zip(*stacked, strict=True)]

    def _chunk(self, session: Session, tokens: Sequence[int]) -> SequenceChunk:
        end = session.length + len(tokens)
        while len(session.table) * BLOCK_TOKENS < end:
            session.table.append(self._free_blocks.pop())
        in_prompt = session.prompt_length is not None and session.length < session.prompt_length
        past = session.tokens[-(self.config.engram_max_ngram_size - 1) :]
        first = session.length - len(past)
        span = _span(session)
        return SequenceChunk(
            token_ids=list(tokens),
            first_position=session.length,
            state_slot=session.slot,
            block_table=session.table,
            history=[NOT_TEXT if first + i in span else token for i, token in enumerate(past)],
            prompt_length=session.prompt_length if in_prompt else None,
            window_floor=session.window_floor,
            entry_floor=session.entry_floor,
        )

    def _learned_vectors(self) -> dict[str, np.ndarray]:
        names = ("image_start", "image_newline", "image_end")
        return {name: self.source.read(name, torch.float64).numpy() for name in names}

    def _images(self, feeds: Sequence[tuple[Session, Sequence[int]]]) -> ImageRows | None:
        """Image rows of a step whose sessions have already been extended by their tokens."""
        if all(session.image is None for session, _ in feeds):
            return None
        mask, vectors = [], []
        for session, tokens in feeds:
            span = _span(session)
            learned = {
                n: self.source.tensors[n].numpy() for n in ("image_start", "image_newline", "image_end")
            }
            span_vectors = [] if session.image is None else session.image.vectors(learned)
            for position in range(session.length - len(tokens), session.length):
                mask.append(position in span)
                vectors.append(
                    span_vectors[position - span.start] if mask[-1] else np.zeros(self.config.hidden_size)
                )
        return ImageRows(torch.tensor(mask), torch.from_numpy(np.array(vectors)))


def _span(session: Session) -> range:
    if session.image is None:
        return range(0)
    height, width = session.image.grid_hw
    return range(session.image.start, session.image.start + height * (width + 1) + 2)


def _by_sequence(batch: Batch, logits: np.ndarray, sequences: int) -> list[Fed]:
    rows = batch.rows if batch.retained is None else batch.retained.rows
    result = []
    for sequence in range(sequences):
        mine = (rows.sequence == sequence).numpy()
        result.append(Fed(rows.position.numpy()[mine].tolist(), logits[mine]))
    return result
