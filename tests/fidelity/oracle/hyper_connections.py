"""Manifold-constrained hyper-connections, shifted: several residual streams instead of one (model_spec 2.2).

A token owns `c` copies of the residual stream. Before a sublayer the copies are contracted to one vector,
after it the result is spread over the copies while the copies are mixed among themselves. All three sets of
coefficients are computed from the copies themselves:

    pre  [c]     how to contract them        (used by the NEXT sublayer: this is the "shift")
    post [c]     how to spread the result
    comb [c, c]  how copies mix: comb[source, destination], its columns sum to one (Sinkhorn)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepahead.engine.model.v41.config import ModelConfig

from .arithmetic import Array, sigmoid, softmax


@dataclass(frozen=True)
class Mixes:
    """Coefficients of one token at one sublayer."""

    pre: Array
    post: Array
    comb: Array


def sinkhorn(logits: Array, iterations: int, eps: float) -> Array:
    """[c, c] logits -> a non-negative matrix whose columns (and, approximately, rows) sum to one."""
    matrix = np.array([softmax(row) for row in logits]) + eps
    matrix = matrix / (matrix.sum(axis=0, keepdims=True) + eps)
    for _ in range(iterations - 1):
        matrix = matrix / (matrix.sum(axis=1, keepdims=True) + eps)
        matrix = matrix / (matrix.sum(axis=0, keepdims=True) + eps)
    return matrix


def mixes(config: ModelConfig, stream: Array, fn: Array, base: Array, scale: Array) -> Mixes:
    """Coefficients computed from one token's `stream` [c, d] with a sublayer's parameters."""
    c = config.hc_mult
    flat = stream.reshape(-1)  # copy 0 first
    raw = (fn @ flat) / np.sqrt(np.mean(flat * flat) + config.rms_norm_eps)
    raw_pre, raw_post, raw_comb = raw[:c], raw[c : 2 * c], raw[2 * c :]
    base_pre, base_post, base_comb = base[:c], base[c : 2 * c], base[2 * c :]
    pre = sigmoid(scale[0] * raw_pre + base_pre) + config.hc_eps
    post = 2.0 * sigmoid(scale[1] * raw_post + base_post)
    comb_logits = (scale[2] * raw_comb + base_comb).reshape(c, c)
    return Mixes(pre, post, sinkhorn(comb_logits, config.hc_sinkhorn_iters, config.hc_eps))


def contract(stream: Array, pre: Array) -> Array:
    """The single vector [d] that a sublayer sees of `stream` [c, d]."""
    result = np.zeros(stream.shape[1])
    for copy, weight in zip(stream, pre, strict=True):
        result = result + weight * copy
    return result


def spread(stream: Array, output: Array, coefficients: Mixes) -> Array:
    """The stream after a sublayer produced `output` [d]."""
    copies = range(len(stream))
    new = np.zeros_like(stream)
    for destination in copies:
        new[destination] = coefficients.post[destination] * output
        for source in copies:
            new[destination] += coefficients.comb[source, destination] * stream[source]
    return new
