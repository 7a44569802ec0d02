"""From logits to a token under a request's parameters, in numpy; the rules of the torch kernels.

Batch and oracle share this file: what is tested with it is the engine around it, and the kernels are tested
against `sampling/seeds.py` on their own. Every function treats rows alone, so batches cannot matter.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from stepahead.engine.sampling.seeds import TARGET, draw, key

from ..runner import Float32s, Int32s, UInt64s
from .edits import SequenceEdits


class RowParams(msgspec.Struct, frozen=True, eq=False):
    """Sampling parameters by row, named as in `SamplingRows`."""

    temperature: Float32s
    top_k: Int32s
    top_p: Float32s
    min_p: Float32s
    seed: UInt64s
    choice: Int32s
    min_output: Int32s
    end_ids: Int32s  # [rows, width]
    edits: Sequence[SequenceEdits | None]

    def only(self, rows: Sequence[int] | npt.NDArray[np.intp] | slice) -> RowParams:
        """Of some rows."""
        index = np.arange(len(self.edits))[rows]
        arrays = {name: getattr(self, name)[index] for name in self.__struct_fields__ if name != "edits"}
        return RowParams(**arrays, edits=[self.edits[row] for row in index.tolist()])


def choose(logits: Float32s, params: RowParams, output_positions: Int32s) -> Int32s:
    """One id per row, int32 [rows], from finite float32 [rows, vocab].

    Temperature 0 takes the best, lowest id on ties; otherwise draws from the processed distribution with the
    noise of (seed, choice, output position).
    """
    left = processed(logits, params, output_positions)
    chosen: Int32s = left.argmax(-1).astype(np.int32)
    (drawn,) = np.nonzero(params.temperature > 0)
    if drawn.size:
        keys = key(params.seed[drawn], params.choice[drawn], output_positions[drawn], TARGET)
        chosen[drawn] = draw(left[drawn], keys)
    return chosen


def processed(logits: Float32s, params: RowParams, output_positions: Int32s) -> Float32s:
    """What is drawn from, unnormalised: edited, without banned ids, and where temperature > 0 filtered."""
    left = _without_banned(_edited(logits, params.edits), params, output_positions)
    (drawn,) = np.nonzero(params.temperature > 0)
    if drawn.size:
        scaled = left[drawn] / params.temperature[drawn, None]
        left = left.copy()
        left[drawn] = keep_best(scaled, params.top_k[drawn], params.top_p[drawn], params.min_p[drawn])
    return left


def _edited(logits: Float32s, edits: Sequence[SequenceEdits | None]) -> Float32s:
    if not any(edits):
        return logits
    rows = (row if edit is None else edit.apply(row) for row, edit in zip(logits, edits, strict=True))
    return np.stack(list(rows))


def _without_banned(logits: Float32s, params: RowParams, output_positions: Int32s) -> Float32s:
    early = output_positions < params.min_output
    if not early.any():
        return logits
    row, column = np.nonzero(early[:, None] & (params.end_ids >= 0))
    allowed = logits.copy()
    allowed[row, params.end_ids[row, column]] = -np.inf
    return allowed


def keep_best(logits: Float32s, top_k: Int32s, top_p: Float32s, min_p: Float32s) -> Float32s:
    """What stays has a rank below top_k, better ones of mass at most top_p, and min_p of the best's mass."""
    if not ((top_k > 0) | (top_p < 1) | (min_p > 0)).any():
        return logits
    order = np.argsort(-logits, axis=-1, kind="stable")
    ordered = np.take_along_axis(logits, order, axis=-1)
    mass = np.exp(log_softmax(ordered))
    better = np.cumsum(mass, axis=-1) - mass
    cut = (top_k[:, None] > 0) & (np.arange(logits.shape[1]) >= top_k[:, None])
    cut |= (top_p[:, None] < 1) & (better > top_p[:, None])
    cut |= mass < min_p[:, None] * mass[:, :1]
    kept = np.empty_like(logits)
    np.put_along_axis(kept, order, np.where(cut, np.float32(-np.inf), ordered), axis=-1)
    return kept


def log_softmax(logits: Float32s) -> Float32s:
    """float32 [rows, vocab]; -inf stays -inf."""
    shifted = logits - logits.max(-1, keepdims=True)
    normalised: Float32s = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


def best(logprobs: Float32s, count: int) -> tuple[Float32s, Int32s]:
    """The `count` best of each row, best first, lowest id on ties: values and ids, [rows, count]."""
    order = np.argsort(-logprobs, axis=-1, kind="stable")[:, :count]
    return np.take_along_axis(logprobs, order, axis=-1), order.astype(np.int32)
