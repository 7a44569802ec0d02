"""Where an n-gram lands in the Engram memory: prime table sizes, row offsets, multipliers (model_spec 2.11).

Every (layer, n-gram order, head) owns a table with a prime number of rows, and no prime is used twice in a
model; the tables of a layer lie behind each other in one weight. Nothing of this is stored in a checkpoint:
it is derived from the configuration, and the number of rows is compared with what the configuration declares.
"""

from __future__ import annotations

from math import isqrt

import msgspec
import numpy as np

from .config_types import ModelConfig

_INT64_MAX = (1 << 63) - 1
_LAYER_SEED = 10007


class EngramTable(msgspec.Struct, frozen=True, kw_only=True):
    """The hash geometry of one Engram layer.

    `primes` and `offsets` have one entry per row of a token, in (order 2..N, head) order; `multipliers` has
    one odd int64 factor per distance 0..N-1 from the token.
    """

    layer_id: int
    primes: tuple[int, ...]
    offsets: tuple[int, ...]
    multipliers: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows of the layer's embedding weight."""
        return sum(self.primes)


def engram_tables(config: ModelConfig) -> tuple[EngramTable, ...]:
    """Tables of all Engram layers, in the order of `engram_layer_ids`; empty for a model without memory."""
    used: set[int] = set()
    return tuple(_table(config, layer_id, used) for layer_id in config.engram_layer_ids)


def _table(config: ModelConfig, layer_id: int, used: set[int]) -> EngramTable:
    primes: list[int] = []
    for _order in range(2, config.engram_max_ngram_size + 1):
        primes += _next_unused_primes(config.engram_vocab_size, config.engram_n_heads, used)
    offsets = np.cumsum([0, *primes[:-1]]).tolist()
    return EngramTable(
        layer_id=layer_id,
        primes=tuple(primes),
        offsets=tuple(offsets),
        multipliers=hash_multipliers(config, layer_id),
    )


def _next_unused_primes(start: int, count: int, used: set[int]) -> list[int]:
    """The first `count` primes from `start` upwards that are not in `used`; they are added to it."""
    primes: list[int] = []
    candidate = start
    while len(primes) < count:
        if candidate not in used and _is_prime(candidate):
            primes.append(candidate)
            used.add(candidate)
        candidate += 1
    return primes


def _is_prime(number: int) -> bool:
    if number < 2 or (number % 2 == 0 and number != 2):
        return False
    return all(number % divisor for divisor in range(3, isqrt(number) + 1, 2))


def hash_multipliers(config: ModelConfig, layer_id: int) -> tuple[int, ...]:
    """Odd factors, small enough that a compressed token id times a factor never overflows int64."""
    compressed_ids = config.engram_compressed_vocab_size or config.vocab_size
    bound = max(1, (_INT64_MAX // compressed_ids) // 2)
    generator = np.random.default_rng(_LAYER_SEED * layer_id)
    draws = generator.integers(0, bound, size=config.engram_max_ngram_size, dtype=np.int64)
    return tuple((draws * 2 + 1).tolist())
