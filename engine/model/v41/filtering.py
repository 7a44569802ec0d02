"""Rows under filters, in groups that are worked on alike: a row with a deep filter costs its own work only.

How many tokens a filter may keep is known on the host where there is a `top_k`, and then only so many are
ranked. Where there is none, or a large one, a CPU ranks a few and asks whether they were enough; a GPU, which
nobody may wait for, finds the threshold without ranking. Groups follow from a row's own parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stepahead.devices.kernels.reference import sampling

_RANKS = (64, 1024)
"""Bounds of `top_k` of the groups that are ranked; those beyond are like those without."""
_NUCLEUS = 256
"""Candidates ranked at first where only mass limits them; sharp distributions need fewer."""

Index = npt.NDArray[np.intp]


class Limits(NamedTuple):
    """What filters need of some rows."""

    maxima: Tensor  # [rows]
    top_k: Tensor  # [rows] 0 off
    top_p: Tensor  # [rows]
    min_p: Tensor  # [rows]

    def only(self, index: Tensor) -> Limits:
        return Limits(*(part[index] for part in self))


def host_may_ask(device: torch.device) -> bool:
    """Whether reading a value costs nobody's time."""
    return device.type == "cpu"


def ranked_groups(top_k: npt.NDArray[np.int32]) -> Iterator[tuple[Index, int]]:
    """Row numbers and how many tokens to rank for them; 0: nobody knows. Empty groups are left out."""
    bounded = top_k > 0
    at_least = 0
    for most in _RANKS:
        chosen = np.flatnonzero(bounded & (top_k > at_least) & (top_k <= most))
        if chosen.size:
            yield chosen, int(top_k[chosen].max())
        at_least = most
    rest = np.flatnonzero(~bounded | (top_k > at_least))
    if rest.size:
        yield rest, 0


def candidates(
    scaled_rows_vocab: Tensor, limits: Limits, ranked: int, alternatives: int
) -> Iterator[tuple[Tensor | None, sampling.Candidates | Tensor]]:
    """What the rows of one group keep: numbers within the group (None: all) with candidates, best first, at
    least `alternatives` of them; or with whole rows that are -inf where a filter cuts."""
    if ranked:
        count = max(ranked, alternatives)
        yield None, sampling.keep_candidates(scaled_rows_vocab, *limits, count=count)
    elif host_may_ask(scaled_rows_vocab.device):
        count = max(_NUCLEUS, alternatives)
        yield from sampling.deepen_candidates(scaled_rows_vocab, *limits, count=count)
    else:
        yield None, sampling.keep_by_threshold(scaled_rows_vocab, *limits)


def filter_whole(scaled_rows_vocab: Tensor, limits: Limits, top_k: npt.NDArray[np.int32]) -> Tensor:
    """The rows with -inf where a filter cuts; `top_k` is the host's mirror of the limits'."""
    if not host_may_ask(scaled_rows_vocab.device):
        return sampling.keep_by_threshold(scaled_rows_vocab, *limits)
    whole = torch.empty_like(scaled_rows_vocab)
    for group, ranked in ranked_groups(top_k):
        rows = torch.from_numpy(group)
        for inside, kept in candidates(scaled_rows_vocab[rows], limits.only(rows), ranked, 0):
            dense = kept if isinstance(kept, Tensor) else kept.dense(whole.shape[1])
            whole[rows if inside is None else rows[inside]] = dense
    return whole
