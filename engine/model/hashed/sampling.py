"""The sampling of the hashed model: draw at every row, accept drafts that agree, advance the slots, draft.

Drafts are found by running the model ahead without writing anything, and spoilt by script, so that accept
lengths vary as in life while the text stays what the oracle says.
"""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np

from ..runner import (
    HISTORY,
    NO_TOKEN,
    Bools,
    Float32s,
    Int32s,
    PromptScores,
    RunnerShape,
    SamplePlan,
    StepResult,
    UInt64s,
)
from .choosing import RowParams, best, choose, log_softmax, processed
from .forward import Forward, Index, ring_terms
from .model import FACTOR, NGRAM, HashedModel, words
from .rejection import guess, verify
from .slots import Slots


class _Drawn(msgspec.Struct, frozen=True, eq=False):
    """By sampling sequence [s]: its rows in the step and what was decided."""

    sequences: Index  # [s] into the layout
    rows: Index  # [s, K] into the step's rows, clipped at the last wanted one
    tokens: Int32s  # [s, K]
    emitted: Int32s  # [s]
    kept: Bools  # [s, K] places below `emitted`
    finite: Bools  # [s]
    scores: Float32s  # [wanted rows, vocab] log-probabilities to report; empty if nobody asked
    score_rows: Index  # [s, K] into `scores`


def sample(
    model: HashedModel, shape: RunnerShape, slots: Slots, forward: Forward, plan: SamplePlan
) -> StepResult:
    """Decides a step and writes the slots."""
    slots.update_parameters(plan.updates, plan.edits)
    drawn = _draw(model, shape, slots, forward, plan)
    _advance(slots, forward, drawn)
    if forward.plan.drafts:
        confidences = _draft(model, shape, slots, forward, drawn)
    else:
        slots.drafts[forward.plan.layout.slots[drawn.sequences]] = NO_TOKEN  # whoever verifies one is caught
        confidences = None
    return _result(forward, plan, drawn, confidences, _prompt_scores(model, forward))


def _draw(model: HashedModel, shape: RunnerShape, slots: Slots, forward: Forward, plan: SamplePlan) -> _Drawn:
    layout = forward.plan.layout
    sequences = np.flatnonzero(layout.samples)
    counts = np.where(sequences < layout.decode_count, layout.query_lengths[sequences], 1)
    ends = (layout.row_starts + layout.query_lengths)[sequences]
    places = np.arange(shape.draft_tokens + 1)
    owners = layout.slots[sequences]
    first = np.cumsum(counts) - counts
    wanted = np.arange(counts.sum()) + np.repeat(ends - counts - first, counts)
    owner = np.repeat(owners, counts)
    output = (forward.positions[wanted] + 1 - slots.origin(owner)).astype(np.int32)
    digests = forward.digests[wanted]
    grid = first[:, None] + np.minimum(places, counts[:, None] - 1)
    place = np.arange(counts.sum()) - np.repeat(first, counts)
    params = slots.parameters(owner, lambda row: slots.drafts[owner[row], : place[row]])
    logits = model.logits(digests)
    tokens = choose(logits, params, output)[grid]
    agrees = (slots.drafts[owners] == tokens[:, :-1]) & (places[:-1] < counts[:, None] - 1)
    emitted = 1 + np.cumprod(agrees, axis=1).sum(axis=1).astype(np.int32)
    if shape.rejection:
        _settle_by_rejection(slots, owners, first, counts, (logits, params, output), tokens, emitted)
    forced = np.where(sequences < layout.decode_count, NO_TOKEN, slots.forced(owners))
    tokens = np.where(forced[:, None] >= 0, forced[:, None], tokens)
    kept = places < emitted[:, None]
    finite = (model.finite(digests)[grid] | ~kept).all(axis=1)
    scores = logits[:0]
    if plan.logprobs >= 0:
        reported = np.where(slots.processed(owner)[:, None], processed(logits, params, output), logits)
        scores = log_softmax(reported)
    shown = np.where(kept, tokens, np.int32(NO_TOKEN))
    return _Drawn(sequences, wanted[grid], shown, emitted, kept, finite, scores, grid)


def _settle_by_rejection(
    slots: Slots,
    owners: Int32s,
    first: Index,
    counts: Index,
    drawing: tuple[Float32s, RowParams, Int32s],
    tokens: Int32s,
    emitted: Int32s,
) -> None:
    """Writes tokens [s, K] and counts of the sequences that draw at random."""
    logits, params, output = drawing
    for i, slot in enumerate(owners.tolist()):
        rows = slice(int(first[i]), int(first[i] + counts[i]))
        if params.temperature[rows.start] == 0:
            continue
        drafts = slots.drafts[slot, : counts[i] - 1]
        stand, last = verify(
            logits[rows], params.only(rows), output[rows], drafts, slots.guesses[slot, : counts[i] - 1]
        )
        tokens[i, :stand], tokens[i, stand:] = drafts[:stand], last
        emitted[i] = stand + 1


def _advance(slots: Slots, forward: Forward, drawn: _Drawn) -> None:
    """Position, token and history of every sequence of the step."""
    layout = forward.plan.layout
    moved = layout.query_lengths.copy()
    decodes = drawn.sequences < layout.decode_count
    moved[drawn.sequences[decodes]] = drawn.emitted[decodes]
    slots.position[layout.slots] = forward.first + moved
    owners = layout.slots[drawn.sequences]
    newest = drawn.rows[np.arange(owners.size), drawn.emitted - 1]  # the row whose token was drawn last
    slots.token[owners] = drawn.tokens[np.arange(owners.size), drawn.emitted - 1]
    back = np.arange(1 - HISTORY, 1)
    inside = forward.rows.offset[newest][:, None] + back
    for slot, ids, count in zip(owners.tolist(), drawn.tokens, drawn.emitted.tolist(), strict=True):
        if slot in slots.edits:
            slots.edits[slot] = slots.edits[slot].assuming(ids[:count].tolist())
    older = forward.history[drawn.sequences[:, None], np.clip(HISTORY + inside, 0, HISTORY - 1)]
    recent = forward.tokens[np.maximum(newest[:, None] + back, 0)]
    slots.history[owners] = np.where(inside >= 0, recent, older)


def _draft(
    model: HashedModel, shape: RunnerShape, slots: Slots, forward: Forward, drawn: _Drawn
) -> Float32s | None:
    """Writes drafts of the sequences that sampled; returns scripted confidences of all, [b, D]."""
    if shape.draft_tokens == 0:
        return None
    confidences = np.zeros((forward.plan.layout.slots.size, shape.draft_tokens), dtype=np.float32)
    owners = forward.plan.layout.slots[drawn.sequences]
    if owners.size == 0:
        return confidences
    newest = drawn.rows[np.arange(owners.size), drawn.emitted - 1]
    ahead = _Ahead(model, slots, owners, forward.everything[newest])
    origin, hopeful = slots.origin(owners), np.ones(owners.size, dtype=np.bool_)
    for place in range(shape.draft_tokens):
        digests = ahead.digests()
        chances = model.draft_chances(digests)
        good = model.draft_is_right(digests, chances)
        hopeful &= good  # what stands behind a wrong draft is never looked at
        (kept,) = np.nonzero(hopeful)
        drafts = ((ahead.token + 1) % model.vocab_size).astype(np.int32)
        if shape.rejection:
            output = (ahead.position + 1 - origin).astype(np.int32)
            params = slots.parameters(owners, partial(_guesses, slots, owners, place))
            drafts, slots.guesses[owners, place] = guess(model, digests, params, output, place)
        elif kept.size:
            output = (ahead.position + 1 - origin)[kept].astype(np.int32)
            guessing = owners[kept]
            params = slots.parameters(guessing, partial(_guesses, slots, guessing, place))
            drafts[kept] = choose(model.logits(digests[kept]), params, output)
        ahead.feed(drafts)
        slots.drafts[owners, place] = drafts
        confidences[drawn.sequences, place] = chances
    slots.confidences[owners] = confidences[drawn.sequences]
    return confidences


def _guesses(slots: Slots, owners: Int32s, place: int, row: int) -> Int32s:
    """Drafts of this round before `place`."""
    guesses: Int32s = slots.drafts[owners[row], :place]
    return guesses


class _Ahead:
    """Sequences run past their newest token without a trace in the caches; arrays over [s]."""

    def __init__(self, model: HashedModel, slots: Slots, owners: Int32s, everything: UInt64s) -> None:
        self._model, self._everything = model, everything
        self.position, self.token = slots.position[owners], slots.token[owners]
        self._history = slots.history[owners]
        last = self.position - 1
        blocks = slots.table[owners, last // model.block_tokens]
        self._entry = slots.blocks[blocks, last % model.block_tokens]
        self._ring = slots.rings[owners, last % model.ring]
        self._terms = ring_terms(model, slots, owners, self.position)

    def digests(self) -> UInt64s:
        """Of the rows that feed `token` at `position`."""
        model, factor = self._model, np.uint64(FACTOR)
        weight = model.weights[self.position]
        self._ring = factor * self._ring + model.content(words(self.token), self.position)
        newest = (self._ring * weight)[:, None]
        recent = self._terms.sum(axis=1, dtype=np.uint64) + newest[:, 0]
        self._terms = np.concatenate([newest, self._terms], axis=1)[:, : model.window - 1]
        before = np.concatenate([self.token[:, None], self._history[:, ::-1]], axis=1)
        ngram = (words(before) * np.array(NGRAM, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
        hidden = model.hidden(recent, ngram)
        self._entry = factor * self._entry + hidden
        self._everything = self._everything + self._entry * weight
        return model.digest(self._everything, hidden)

    def feed(self, token: Int32s) -> None:
        self._history = np.concatenate([self._history[:, 1:], self.token[:, None]], axis=1)
        self.position, self.token = self.position + 1, token


def _prompt_scores(model: HashedModel, forward: Forward) -> PromptScores | None:
    scored = forward.plan.scored
    if scored is None:
        return None
    scores = log_softmax(model.logits(forward.digests[scored.rows]))
    values, ids = best(scores, scored.alternatives)
    chosen = scores[np.arange(scored.rows.size), scored.tokens]
    return PromptScores(logprobs=chosen, top_logprobs=values, top_tokens=ids)


def _result(
    forward: Forward,
    plan: SamplePlan,
    drawn: _Drawn,
    confidences: Float32s | None,
    prompt_scores: PromptScores | None,
) -> StepResult:
    layout = forward.plan.layout
    count, width = layout.slots.size, drawn.rows.shape[1]
    tokens = np.full((count, width), NO_TOKEN, dtype=np.int32)
    emitted, finite = np.zeros(count, dtype=np.int32), np.ones(count, dtype=np.bool_)
    tokens[drawn.sequences], emitted[drawn.sequences] = drawn.tokens, drawn.emitted
    finite[drawn.sequences] = drawn.finite
    drafted = layout.query_lengths - 1
    drafted[layout.decode_count :] = 0
    logprobs, top_logprobs, top_tokens = _logprobs(plan.logprobs, drawn, count)
    return StepResult(
        step=plan.step,
        tokens=tokens,
        emitted=emitted,
        drafted=drafted,
        positions=forward.first,
        finite=finite,
        logprobs=logprobs,
        top_logprobs=top_logprobs,
        top_tokens=top_tokens,
        confidences=confidences,
        prompt_scores=prompt_scores,
    )


def _logprobs(
    asked: int, drawn: _Drawn, count: int
) -> tuple[Float32s | None, Float32s | None, Int32s | None]:
    """Of the model's own distribution, or of the one drawn from."""
    if asked < 0:
        return None, None, None
    shape = (count, drawn.rows.shape[1])
    logprobs = np.zeros(shape, dtype=np.float32)
    top_logprobs = np.zeros((*shape, asked), dtype=np.float32)
    top_tokens = np.full((*shape, asked), NO_TOKEN, dtype=np.int32)
    sequence, place = np.nonzero(drawn.kept)
    scores = drawn.scores[drawn.score_rows[sequence, place]]
    values, ids = best(scores, asked)
    where = (drawn.sequences[sequence], place)
    logprobs[where] = scores[np.arange(sequence.size), drawn.tokens[sequence, place]]
    top_logprobs[where], top_tokens[where] = values, ids
    return logprobs, top_logprobs, top_tokens
