"""Invariants 22 to 24 and 28 to 30 of model_spec 7.3 that hold for single components of the fast path."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from stepahead.devices.kernels.reference import attention, engram, experts, hyper_connections, rotary
from stepahead.engine.model.v41.engram_tables import engram_tables

from .configurations import small_config
from .oracle import engram as oracle_engram

NO_SINK = -torch.inf
ROWS, HEADS, DIM, KEYS, POOL = 5, 4, 32, 7, 20


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _attend(sink: Tensor, index: Tensor, query: Tensor | None = None, pool: Tensor | None = None) -> Tensor:
    """Window-only attention of random queries over a random pool."""
    query = _random(ROWS, HEADS, DIM) if query is None else query
    pool = _random(POOL, DIM, seed=1) if pool is None else pool
    keys = attention.KeyIndex.of(index, query.dtype)
    return attention.sparse_attention(query, pool, keys, None, None, sink, DIM**-0.5)


def _key_index() -> Tensor:
    index = torch.randint(0, POOL, (ROWS, KEYS), generator=torch.Generator().manual_seed(2))
    index[1, :3] = -1  # a row with fewer keys
    return index


@pytest.mark.parametrize("sink", [NO_SINK, -1e4])
def test_invariant_22_without_a_sink_attention_is_the_ordinary_softmax(sink: float) -> None:
    index = _key_index()
    outputs = _attend(torch.full((HEADS,), sink, dtype=torch.float64), index)
    query, pool = _random(ROWS, HEADS, DIM), _random(POOL, DIM, seed=1)
    for row in range(ROWS):
        keys = pool[index[row][index[row] >= 0]]
        expected = torch.softmax(query[row] @ keys.T * DIM**-0.5, dim=-1) @ keys
        torch.testing.assert_close(outputs[row], expected, atol=1e-12, rtol=0)


def test_invariant_22_an_overwhelming_sink_leaves_nothing() -> None:
    outputs = _attend(torch.full((HEADS,), 1e4, dtype=torch.float64), _key_index())
    assert torch.equal(outputs, torch.zeros_like(outputs))


@pytest.mark.parametrize("sink", [NO_SINK, -3.0, 3.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_invariant_22_a_row_without_keys_gives_zero(sink: float, rounded: bool) -> None:
    index = _key_index()
    index[3] = -1
    keys = attention.KeyIndex.of(index, torch.float64)
    outputs = attention.sparse_attention(
        _random(ROWS, HEADS, DIM), _random(POOL, DIM, seed=1), keys, None, None,
        torch.full((HEADS,), sink, dtype=torch.float64), DIM**-0.5, round_probabilities=rounded,
    )  # fmt: skip
    assert torch.equal(outputs[3], torch.zeros_like(outputs[3]))
    assert torch.isfinite(outputs).all()
    assert (outputs[2] != 0).all()


def test_invariant_22_a_sink_scales_the_output_of_its_head_only() -> None:
    sink = torch.full((HEADS,), NO_SINK, dtype=torch.float64)
    plain = _attend(sink, _key_index())
    sink[2] = 0.5
    with_sink = _attend(sink, _key_index())
    assert torch.equal(with_sink[:, [0, 1, 3]], plain[:, [0, 1, 3]])
    ratio = with_sink[:, 2] / plain[:, 2]
    assert (ratio < 1).all()
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio), atol=1e-12, rtol=0)


def test_invariant_23_attention_depends_on_distances_only() -> None:
    """Rotate queries and keys to their positions, attend, rotate back: a common shift cancels."""
    frequencies = rotary.plain_frequencies(10000.0, 8)
    table = rotary.rotary_table(frequencies, 4096, torch.float64, torch.device("cpu"))

    def outputs(shift: int) -> Tensor:
        positions = torch.arange(KEYS) + shift
        keys = rotary.rotate_(_random(KEYS, DIM, seed=1), table[positions])
        query = rotary.rotate_(_random(1, HEADS, DIM), table[positions[-1]])
        index = torch.arange(KEYS)[None]
        attended = _attend(_random(HEADS, seed=3), index, query, keys)
        return rotary.rotate_(attended, table[positions[-1]], inverse=True)

    torch.testing.assert_close(outputs(1000), outputs(0), atol=1e-12, rtol=0)
    # Without the last rotation the shift would show: the test has something to lose.
    turned = rotary.rotate_(outputs(0), table[1000])
    assert (turned - outputs(0)).abs().max() > 0.1


def test_invariant_24_columns_of_comb_sum_to_one() -> None:
    copies, eps = 4, 1e-6
    sums = hyper_connections.sum_matrices(copies, torch.float64, torch.device("cpu"))
    comb = hyper_connections.sinkhorn(2 * _random(200, copies * copies), sums, 20, eps)
    assert comb.min() > 0
    assert (comb.sum(dim=1) - 1).abs().max() < 2 * eps  # over sources: each destination is an average
    rows = (comb.sum(dim=2) - 1).abs().max()
    assert 1e-4 < rows < 0.3


def test_invariant_24_the_first_sublayer_reads_the_embedding() -> None:
    embedding = _random(ROWS, DIM)
    streams = embedding[:, None].repeat(1, 4, 1)
    one_hot = torch.eye(4, dtype=torch.float64)[0].expand(ROWS, 4)
    assert torch.equal(hyper_connections.contract(streams, one_hot), embedding)


SCALING = 1.5


def _route(logits: Tensor, bias: Tensor) -> dict[int, dict[int, float]]:
    """Per row, the weight of each chosen expert."""
    chosen, weights = experts.route(experts.gate_scores(logits), bias, 2, SCALING)
    pairs = zip(chosen.tolist(), weights.tolist(), strict=True)
    return {row: dict(zip(e, w, strict=True)) for row, (e, w) in enumerate(pairs)}


def test_invariant_28_weights_sum_to_the_scaling_factor() -> None:
    for weights in _route(_random(50, 8), _random(8, seed=1)).values():
        assert sum(weights.values()) == pytest.approx(SCALING, abs=1e-12)


def test_invariant_28_a_constant_added_to_all_biases_changes_nothing() -> None:
    logits, bias = _random(50, 8), _random(8, seed=1)
    assert _route(logits, bias + 0.5) == _route(logits, bias)


def test_invariant_28_a_bias_moves_the_choice_and_never_the_weights() -> None:
    logits = _random(200, 8)
    before, after = (
        _route(logits, torch.zeros(8, dtype=torch.float64)),
        _route(logits, 0.2 * _random(8, seed=1)),
    )
    same = [row for row in before if before[row].keys() == after[row].keys()]
    assert 0 < len(same) < 200
    for row in same:
        assert before[row] == after[row]


def test_invariant_28_each_row_may_have_its_own_bias() -> None:
    logits, text, image = _random(6, 8), _random(8, seed=1), _random(8, seed=2)
    is_image = torch.tensor([0, 1, 0, 1, 1, 0], dtype=torch.bool)
    mixed = _route(logits, torch.where(is_image[:, None], image, text))
    for row in range(6):
        assert mixed[row] == _route(logits, image if is_image[row] else text)[row]


def test_invariant_29_the_gate_is_clamped_above_and_the_up_projection_on_both_sides() -> None:
    gate, up = torch.tensor([20.0, -20.0]).double(), torch.tensor([20.0, -20.0]).double()
    result = experts.swiglu(torch.cat([gate.repeat(2), up.repeat_interleave(2)]), 10.0).view(2, 2)
    silu = torch.nn.functional.silu(torch.tensor([10.0, -20.0]).double())  # -20 is not clamped
    torch.testing.assert_close(result, torch.stack([silu * 10, silu * -10]), atol=1e-15, rtol=0)


def test_invariant_30_ngrams_are_padded_before_the_start_and_behind_an_image() -> None:
    """Distances run from the token itself backwards; NOT_TEXT stands before the start and for image rows."""
    none = engram.NOT_TEXT
    histories = torch.tensor(
        [[5, none, none, none], [5, 6, 7, none], [5, 6, 7, 8], [5, none, 7, 8], [none, 6, 7, 8]]
    )
    masked = engram.mask_ngrams(histories, torch.tensor(2)).tolist()
    assert masked == [[5, 2, 2, 2], [5, 6, 7, 2], [5, 6, 7, 8], [5, 2, 2, 2], [2, 2, 2, 2]]


def test_invariant_30_hashed_rows_lie_in_their_range_and_equal_the_oracle() -> None:
    config = small_config()
    generator = np.random.default_rng(0)
    ids = [*generator.integers(0, config.vocab_size, 60).tolist()]
    ids[20:24] = [oracle_engram.IMAGE_ROW] * 4
    pad = config.engram_pad_token_id
    primes = oracle_engram.primes(config)
    for table in engram_tables(config):
        recent = [oracle_engram.history(ids, p, config.engram_max_ngram_size, pad) for p in range(len(ids))]
        shape = (config.engram_max_ngram_size - 1, config.engram_n_heads)
        rows = engram.hash_rows(
            torch.tensor(recent), torch.tensor(table.multipliers),
            torch.tensor(table.primes).view(shape), torch.tensor(table.offsets).view(shape),
        )  # fmt: skip
        low = torch.tensor(table.offsets)
        assert ((rows >= low) & (rows < low + torch.tensor(table.primes))).all()
        factors = oracle_engram.multipliers(config, table.layer_id, config.vocab_size)
        assert rows.tolist() == [
            oracle_engram.row_ids(config, r, factors, primes[table.layer_id]) for r in recent
        ]


def test_invariant_30_image_rows_take_no_memory() -> None:
    streams, memory = _random(ROWS, 4, DIM), _random(ROWS, 5, DIM, seed=1)
    text = torch.tensor([1, 0, 1, 1, 0], dtype=torch.bool)
    result = engram.apply_memory(streams, memory, _random(4, DIM, seed=2), text, 1e-20)
    assert torch.equal(result[~text], streams[~text])
    assert (result[text] != streams[text]).all()


def test_invariant_30_a_dot_product_of_zero_opens_the_gate_by_half() -> None:
    """sqrt(1e-6) keeps its sign through copysign: sigmoid(0.001) = 0.50025 (model_spec 2.11)."""
    streams, memory = torch.zeros(1, 4, DIM).double(), _random(1, 5, DIM)
    result = engram.apply_memory(streams, memory, torch.ones(4, DIM).double(), None, 1e-20)
    torch.testing.assert_close(result, memory[:, -1:].expand(1, 4, DIM) * 0.50025, atol=1e-6, rtol=0)
