"""What a forward of the oracle leaves behind: every intermediate that a test may want to compare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from .arithmetic import Array
from .experts import Routing
from .hyper_connections import Mixes


@dataclass(frozen=True)
class ImageSpan:
    """One image of a prompt: START, per grid row its IMAGE positions and a NEWLINE, END (model_spec 6)."""

    start: int
    grid_hw: tuple[int, int]
    features: Array  # [h * w, d], row-major, in place of the embeddings of the IMAGE positions

    def vectors(self, learned: Mapping[str, Array]) -> list[Array]:
        """The vector of each position; `learned` holds image_start, image_newline and image_end."""
        height, width = self.grid_hw
        span = [learned["image_start"]]
        for row in range(height):
            span += list(self.features[row * width : (row + 1) * width])
            span.append(learned["image_newline"])
        return [*span, learned["image_end"]]


@dataclass
class Trace:
    """Dictionaries are keyed by layer id, lists run over positions; `c` is the number of residual copies."""

    tokens: list[int]
    streams: dict[int, list[Array]] = field(default_factory=dict)  # [c, d] after the layer
    carried_pre: dict[int, list[Array]] = field(default_factory=dict)  # [c] of the layer's expert sublayer
    attention_mixes: dict[int, list[Mixes]] = field(default_factory=dict)
    attention_inputs: dict[int, list[Array]] = field(default_factory=dict)  # [d] before attn_norm
    routing: dict[int, list[Routing]] = field(default_factory=dict)
    window_keys: dict[int, list[Array]] = field(default_factory=dict)  # [D]
    entries: dict[int, list[Array]] = field(default_factory=dict)  # [D] per group, KV sources only
    index_keys: dict[int, list[Array]] = field(default_factory=dict)  # index-key sources only
    topk: dict[int, list[list[int]]] = field(default_factory=dict)  # ascending, index sources only
    candidates: list[list[int]] = field(default_factory=list)  # ascending blocks
    engram_rows: dict[int, list[list[int]]] = field(default_factory=dict)
    features: dict[int, list[Array]] = field(default_factory=dict)  # [d], draft target layers only
    main_hidden: list[Array] = field(default_factory=list)  # [targets * d]
    main_keys: list[list[Array]] = field(default_factory=list)  # [stage][position] -> [D]
    logits: Array = field(default_factory=lambda: np.zeros((0, 0)))  # [n, V]


@dataclass(frozen=True)
class Persisted:
    """Compressed entries of an earlier forward: those of groups within its first `length` tokens."""

    trace: Trace
    length: int


@dataclass(frozen=True)
class Draft:
    """One draft round: greedy tokens, their corrected logits [B, V], raw confidences (before the sigmoid)."""

    tokens: list[int]
    logits: Array
    confidences: list[float]
