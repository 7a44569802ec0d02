"""Sampling parameters of the sequences in their slots, on the host's side of the border.

The device samples with tables indexed by slot. This is their source: it turns newcomers into rows to write,
and keeps what the host needs to judge a result (end ids, the cap, tokens so far). Nothing of it is touched
per sequence in a step; rows are overwritten by the next occupant and never cleared.

Invariant: the table speaks of the step that is resolved next, because newcomers of step n+1 are written after
step n was resolved.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from stepahead.engine.model.runner import (
    NO_TOKEN,
    BatchLayout,
    Bools,
    Float32s,
    Int32s,
    RunnerShape,
    SamplePlan,
    SamplingRows,
)
from stepahead.engine.model.selectors import Rows, Selector
from stepahead.engine.types import Occupant, ResolvedParams

from .edits import edit_rows


class SamplingTable:
    """Arrays over slots. `left`, the tokens a sequence may still give, is reduced by `commit.resolve`,
    everything else is written by `occupy`."""

    def __init__(self, shape: RunnerShape) -> None:
        slots = 1 + shape.sequence_slots
        self.left: Int32s = np.zeros(slots, dtype=np.int32)
        self.end_ids: Int32s = np.full((slots, shape.max_stop_ids), NO_TOKEN, dtype=np.int32)
        self.logprobs: Int32s = np.full(slots, -1, dtype=np.int32)
        self.greedy: Bools = np.ones(slots, dtype=np.bool_)
        self._ends: Bools = np.zeros(2, dtype=np.bool_)
        self._nobody = _sampling_rows((), self.end_ids.shape[1])
        self._selector = Selector()
        self._last: tuple[Int32s | None, int, bool] = (None, -1, True)

    def occupy(self, occupants: Sequence[Occupant]) -> SamplingRows:
        """Writes newcomers into their slots; returns the rows for the device's tables."""
        if not occupants:
            return self._nobody
        rows = _sampling_rows(occupants, self.end_ids.shape[1])
        self.left[rows.slots] = [
            occupant.request.params.max_output - occupant.output for occupant in occupants
        ]
        self.end_ids[rows.slots] = rows.end_ids
        self.logprobs[rows.slots] = rows.logprobs
        self.greedy[rows.slots] = rows.temperature == 0
        self._remember_ends(rows.end_ids)
        return rows

    def prepare(self, layout: BatchLayout, admitted: Sequence[Occupant], step: int) -> SamplePlan:
        """What the sampling of `layout` needs. Call after the step before it was resolved."""
        updates = self.occupy(admitted)
        known, logprobs, greedy = self._last
        if known is not layout.slots or admitted:
            drawing = layout.slots[layout.samples]
            logprobs = int(self.logprobs[drawing].max(initial=-1))
            greedy = bool(self.greedy[drawing].all())
            self._last = (layout.slots, logprobs, greedy)
        return SamplePlan(
            step=step, updates=updates, logprobs=logprobs, all_greedy=greedy, edits=edit_rows(admitted)
        )

    def rows(self, layout: BatchLayout) -> Rows:
        """The selector of a layout's slots in these arrays."""
        return self._selector.rows(layout)

    def may_end(self, tokens: Int32s) -> Bools:
        """Where `tokens` hold an id that ends some sequence, past or present; same shape.

        A permission to look closer: no step without such an id compares any with the table of end ids.
        """
        found: Bools = self._ends.take(tokens, mode="clip")  # NO_TOKEN asks for id 0: a look in vain at worst
        return found

    def _remember_ends(self, end_ids: Int32s) -> None:
        """The last index stands for every id beyond, which ends nothing."""
        needed = int(end_ids.max(initial=NO_TOKEN)) + 2
        if needed > self._ends.size:
            grown = np.zeros(needed, dtype=np.bool_)
            grown[: self._ends.size] = self._ends
            self._ends = grown
        self._ends[end_ids[end_ids != NO_TOKEN]] = True


def _sampling_rows(occupants: Sequence[Occupant], width: int) -> SamplingRows:
    params = [occupant.request.params for occupant in occupants]
    return SamplingRows(
        slots=_integers(occupant.slot for occupant in occupants),
        temperature=_floats(p.temperature for p in params),
        top_k=_integers(p.top_k for p in params),
        top_p=_floats(p.top_p for p in params),
        min_p=_floats(p.min_p for p in params),
        seed=np.fromiter((p.seed for p in params), dtype=np.uint64, count=len(params)),
        choice=_integers(occupant.request.choice for occupant in occupants),
        origin=_integers(len(occupant.request.prompt) // 4 for occupant in occupants),
        min_output=_integers(p.min_output for p in params),
        end_ids=_end_ids(params, width),
        logprobs=_integers(p.logprobs for p in params),
        processed=np.fromiter((p.logprobs_processed for p in params), dtype=np.bool_, count=len(params)),
        forced=_integers(occupant.forced for occupant in occupants),
        most_drafts=_integers(p.draft_tokens for p in params),
    )


def _end_ids(params: Sequence[ResolvedParams], width: int) -> Int32s:
    padded = [p.end_ids + (NO_TOKEN,) * (width - len(p.end_ids)) for p in params]
    return np.array(padded, dtype=np.int32).reshape(len(params), width)


def _integers(values: Iterable[int]) -> Int32s:
    return np.fromiter(values, dtype=np.int32)


def _floats(values: Iterable[float]) -> Float32s:
    return np.fromiter(values, dtype=np.float32)
