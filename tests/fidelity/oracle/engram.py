"""Engram: memory addressed by hashes of the last few tokens (model_spec 2.11).

The n-grams of order 2..N that end at a token are hashed, once per hash head, into disjoint row ranges of one
table. Every range has a prime number of rows, and no prime is used twice in the model. The fetched rows give
a value and one key per residual copy; the copy decides with a gate how much of the value it takes in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import Array
from .weights import Scope

IMAGE_ROW = -1
"""Stands in the id stream for each position of an image span, which has no engram id; n-grams end there."""


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def primes(config: ModelConfig) -> dict[int, list[int]]:
    """Rows of every range, per engram layer, in the order (order 2: head 0, 1, ..; order 3: ..)."""
    used: set[int] = set()
    result: dict[int, list[int]] = {}
    for layer in config.engram_layer_ids:
        result[layer] = []
        for _order in range(2, config.engram_max_ngram_size + 1):
            number = config.engram_vocab_size - 1
            for _head in range(config.engram_n_heads):
                number += 1
                while number in used or not _is_prime(number):
                    number += 1
                used.add(number)
                result[layer].append(number)
    return result


def multipliers(config: ModelConfig, layer: int, distinct_ids: int) -> list[int]:
    """One odd factor per distance 0..N-1, small enough that id * factor fits a signed 64-bit integer."""
    bound = max(1, (np.iinfo(np.int64).max // distinct_ids) // 2)
    drawn = np.random.default_rng(10007 * layer).integers(
        0, bound, size=config.engram_max_ngram_size, dtype=np.int64
    )
    return [int(m) * 2 + 1 for m in drawn]


def history(ids: Sequence[int], position: int, length: int, pad: int) -> list[int]:
    """The ids at distances 0..length-1 behind `position`, `pad` before the start and from an image row on."""
    result: list[int] = []
    cut = False
    for distance in range(length):
        here = position - distance
        cut = cut or here < 0 or ids[here] == IMAGE_ROW
        result.append(pad if cut else ids[here])
    return result


def row_ids(
    config: ModelConfig, recent: list[int], layer_multipliers: list[int], layer_primes: list[int]
) -> list[int]:
    """Table rows of one token; `recent` are its ids by distance."""
    scrambled = [token * factor for token, factor in zip(recent, layer_multipliers, strict=True)]
    rows, offset, ranges = [], 0, iter(layer_primes)
    for order in range(2, config.engram_max_ngram_size + 1):
        combined = 0
        for distance in range(order):
            combined ^= scrambled[distance]
        for _head in range(config.engram_n_heads):
            prime = next(ranges)
            rows.append(offset + combined % prime)
            offset += prime
    return rows


def remember(config: ModelConfig, engram: Scope, stream: Array, rows: list[int]) -> Array:
    """The stream [c, d] of one text token after it took in its memory; image rows must not come here."""
    eps, d = config.rms_norm_eps, config.hidden_size
    fetched = np.concatenate([engram["embed.weight"][row] for row in rows])
    projected = (engram["wkv.weight"] @ fetched).reshape(config.hc_mult + 1, d)
    keys, value = projected[:-1], projected[-1]
    new = stream.copy()
    for i, (copy, key) in enumerate(zip(stream, keys, strict=True)):
        dot = float(np.sum(copy * engram["q_weight"][i] * engram["k_weight"][i] * key)) / math.sqrt(d)
        dot /= math.sqrt(float(np.mean(copy * copy)) + eps) * math.sqrt(float(np.mean(key * key)) + eps)
        root = math.copysign(math.sqrt(max(abs(dot), 1e-6)), dot)
        new[i] = copy + value / (1.0 + math.exp(-root))
    return new
