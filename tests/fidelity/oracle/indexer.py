"""The lightning indexer: which compressed entries a query attends to (model_spec 2.7).

A few small heads score every visible entry; the best `index_topk` are attended. One layer (the candidate
source) also publishes the best blocks of consecutive entries, and later layers choose among the entries of
these blocks only.
"""

from __future__ import annotations

import math

import numpy as np

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import Array
from .rope import rotate
from .weights import Scope


def scores(
    config: ModelConfig,
    indexer: Scope,
    u: Array,
    low_rank: Array,
    position: int,
    keys: list[Array],
    freqs: list[float],
) -> list[float]:
    """One score per entry of `keys`, which must be the visible ones."""
    heads, dim = config.index_n_heads, config.index_head_dim
    head_queries = rotate((indexer["wq_b.weight"] @ low_rank).reshape(heads, dim), position, freqs)
    head_weights = (indexer["weights_proj.weight"] @ u) / math.sqrt(dim) / math.sqrt(heads)
    result = []
    for key in keys:
        similarity = np.maximum(head_queries @ key, 0.0)
        result.append(float(head_weights @ similarity))
    return result


def best(score_of: dict[int, float], count: int) -> list[int]:
    """The `count` keys of highest score in ascending order; of equal scores the lower key wins."""
    ranked = sorted(score_of, key=lambda key: (-score_of[key], key))
    return sorted(ranked[:count])


def candidate_blocks(config: ModelConfig, entry_scores: list[float]) -> list[int]:
    """The blocks kept for later layers; the block of the newest visible entry always is."""
    size = config.candidate_block_size
    block_scores: dict[int, float] = {}
    for j, score in enumerate(entry_scores):
        block_scores[j // size] = max(score, block_scores.get(j // size, -math.inf))
    if entry_scores:
        block_scores[(len(entry_scores) - 1) // size] = math.inf
    return best(block_scores, config.candidate_topk_blocks)


def select(config: ModelConfig, entry_scores: list[float], allowed_blocks: list[int] | None) -> list[int]:
    """The entries to attend to, ascending; `allowed_blocks` None means that no candidate stage applies."""
    eligible = {
        j: score
        for j, score in enumerate(entry_scores)
        if allowed_blocks is None or j // config.candidate_block_size in allowed_blocks
    }
    return best(eligible, config.index_topk)
