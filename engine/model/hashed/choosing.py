"""From logits to a token under a request's parameters, in numpy; the rules of the torch kernels.

Batch and oracle share this file: what is tested with it is the engine around it, and the kernels are tested
against `sampling/seeds.py` on their own. Every function treats rows alone, so batches cannot matter.
"""

from __future__ import annotations

import msgspec
import numpy as np

from stepahead.engine.sampling.seeds import TARGET, draw, key

from ..runner import Float32s, Int32s, UInt64s


class RowParams(msgspec.Struct, frozen=True, eq=False):
    """Sampling parameters by row, named as in `SamplingRows`."""

    temperature: Float32s
    top_k: Int32s
    top_p: Float32s
    seed: UInt64s
    choice: Int32s
    min_output: Int32s
    end_ids: Int32s  # [rows, width]


def choose(logits: Float32s, params: RowParams, output_positions: Int32s) -> Int32s:
    """One id per row, int32 [rows], from finite float32 [rows, vocab].

    Bans end ids before `min_output`; temperature 0 takes the best, lowest id on ties; otherwise draws what
    top_k and top_p leave with the noise of (seed, choice, output position).
    """
    allowed = _without_banned(logits, params, output_positions)
    chosen: Int32s = allowed.argmax(-1).astype(np.int32)
    (drawn,) = np.nonzero(params.temperature > 0)
    if drawn.size:
        scaled = allowed[drawn] / params.temperature[drawn, None]
        kept = _keep_best(scaled, params.top_k[drawn], params.top_p[drawn])
        keys = key(params.seed[drawn], params.choice[drawn], output_positions[drawn], TARGET)
        chosen[drawn] = draw(kept, keys)
    return chosen


def _without_banned(logits: Float32s, params: RowParams, output_positions: Int32s) -> Float32s:
    early = output_positions < params.min_output
    if not early.any():
        return logits
    row, column = np.nonzero(early[:, None] & (params.end_ids >= 0))
    allowed = logits.copy()
    allowed[row, params.end_ids[row, column]] = -np.inf
    return allowed


def _keep_best(logits: Float32s, top_k: Int32s, top_p: Float32s) -> Float32s:
    """A token stays while its rank is below top_k and the mass of better ones is at most top_p."""
    if not ((top_k > 0) | (top_p < 1)).any():
        return logits
    order = np.argsort(-logits, axis=-1, kind="stable")
    ordered = np.take_along_axis(logits, order, axis=-1)
    mass = np.exp(log_softmax(ordered))
    better = np.cumsum(mass, axis=-1) - mass
    cut = (top_k[:, None] > 0) & (np.arange(logits.shape[1]) >= top_k[:, None])
    cut |= (top_p[:, None] < 1) & (better > top_p[:, None])
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
