"""Choosing tokens: edits, filters, and draws whose randomness depends on what is drawn, not on when.

A random number is a hash of (seed, choice, output position, purpose, token): never of a batch, a step or a
row. The same request therefore gets the same text alone or among others, with or without speculation, before
and after a preemption. Every function here treats rows alone, down to the order of summation.

A draw is the argmax of log-probabilities plus Gumbel noise, one number a token. Unlike inversion of a
cumulative sum it has no order of summation to depend on, and a draft drawn with the *same* noise as its
target agrees with it whenever their distributions are close: that is how drafts verify by equality and stay
exact.
"""

from .bans import ban_, forbid_
from .best import best, likeliest, log_sum_exp
from .edits import add_, allow_only_, ban_completed_, penalise_
from .filters import Candidates, deepen_candidates, keep_best, keep_candidates
from .noise import draw_candidate, gumbel_argmax, mix, random_keys, uniforms
from .rejection import accept_likely, residual
from .threshold import keep_by_threshold
from .verification import accept_equal

__all__ = [
    "Candidates",
    "accept_equal",
    "accept_likely",
    "add_",
    "allow_only_",
    "ban_",
    "ban_completed_",
    "best",
    "deepen_candidates",
    "draw_candidate",
    "forbid_",
    "gumbel_argmax",
    "keep_best",
    "keep_by_threshold",
    "keep_candidates",
    "likeliest",
    "log_sum_exp",
    "mix",
    "penalise_",
    "random_keys",
    "residual",
    "uniforms",
]
