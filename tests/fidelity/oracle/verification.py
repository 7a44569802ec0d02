"""Speculative sampling: keep drafts without changing what the target model would have said (model_spec 3.3).

A draft s drawn from q is kept with probability min(1, p(s) / q(s)). The first rejected place is drawn again
from what q gave too little of, max(p - q, 0) normalised. Kept and redrawn tokens together are distributed as
p, whatever q is; a bad q only costs accepted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .arithmetic import Array


def draw(probabilities: Array, uniform: float) -> int:
    """The token at which the cumulative distribution passes `uniform` in [0, 1)."""
    passed = int(np.searchsorted(np.cumsum(probabilities), uniform * np.sum(probabilities), side="right"))
    return min(passed, len(probabilities) - 1)


def verify(
    target: Sequence[Array], drafted: Sequence[Array], drafts: Sequence[int], uniform: Callable[[], float]
) -> list[int]:
    """Tokens to emit: accepted drafts and one more. `target` has one distribution more than `drafted`."""
    emitted = []
    for p, q, token in zip(target, drafted, drafts, strict=False):
        if uniform() >= p[token] / q[token]:
            return [*emitted, draw(np.maximum(p - q, 0.0), uniform())]
        emitted.append(token)
    return [*emitted, draw(target[len(drafts)], uniform())]


def verify_greedy(target_choices: Sequence[int], drafts: Sequence[int]) -> list[int]:
    """Greedy form: accept while the draft is the target's own choice, then emit the target's choice."""
    emitted = []
    for choice, token in zip(target_choices, drafts, strict=False):
        if choice != token:
            return [*emitted, choice]
        emitted.append(token)
    return [*emitted, target_choices[len(drafts)]]
