"""The numbers of model_spec 7.2: each takes seconds to check by hand and catches one classic mistake.

Every probe is put to the fast path's function and to the oracle's.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from stepahead.devices.kernels.reference import hyper_connections, quantization, rotary
from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.engram_tables import engram_tables
from stepahead.engine.model.v41.rows import entry_index, plan_rows

from .configurations import nano_config, small_config
from .oracle import checkpoint, compressor, engram, rope
from .oracle import hyper_connections as oracle_mixes

REAL_IDS = 99092  # distinct engram ids of the published tokenizer

E4M3_MINUS_16, E4M3_144 = 0xD8, 0x71


def test_scale_byte_0x73_is_two_to_the_minus_12() -> None:
    assert checkpoint.E8M0[0x73] == 2.0**-12
    assert quantization.decode_ue8m0(torch.tensor([0x73], dtype=torch.uint8)).item() == 2.0**-12


def test_first_values_of_the_published_checkpoint() -> None:
    """-16 and 144 in e4m3 under scale byte 0x73: the first two elements of layers.0.attn.wkv, row 0."""
    expected = [-0.00390625, 0.03515625]
    data, scale = np.array([[E4M3_MINUS_16, E4M3_144]], np.uint8), np.array([[0x73]], np.uint8)
    assert checkpoint.blocked_fp8(data, scale, 32)[0].tolist() == expected
    payload = torch.from_numpy(data).view(torch.float8_e4m3fn)
    assert (
        quantization.dequantize_fp8(payload, torch.from_numpy(scale), torch.float64)[0].tolist() == expected
    )


def test_e2m1_nibbles() -> None:
    magnitudes = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
    expected = magnitudes + [-m for m in magnitudes]
    decoded = quantization.decode_e2m1(torch.arange(16, dtype=torch.uint8)).double().numpy()
    for values in (checkpoint.E2M1, decoded):
        assert values.tolist() == expected
        assert np.signbit(values[8])  # nibble 8 is minus zero


def _default_mixes(config: ModelConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """fn, base and scale of layer 0 as an untrained model has them (model_spec 2.2)."""
    c = config.hc_mult
    pre = np.full(c, -3.0)
    pre[0] = 3.0
    comb = np.full((c, c), -3.0) + 6.0 * np.eye(c)
    base = np.concatenate([pre, np.zeros(c), comb.reshape(-1)])
    return np.zeros((config.mix_size, c * config.hidden_size)), base, np.full(3, 0.01)


def _oracle_mixes(config: ModelConfig, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    result = oracle_mixes.mixes(config, stream, *_default_mixes(config))
    return result.pre, result.post, result.comb


def _fast_mixes(config: ModelConfig, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    fn, base, scale = (torch.from_numpy(x) for x in _default_mixes(config))
    c = config.hc_mult
    results = hyper_connections.mixes(
        torch.from_numpy(stream)[None], fn, base, scale.repeat_interleave(torch.tensor([c, c, c * c])),
        hyper_connections.sum_matrices(c, torch.float64, torch.device("cpu")),
        iterations=config.hc_sinkhorn_iters, hc_eps=config.hc_eps, norm_eps=config.rms_norm_eps,
    )  # fmt: skip
    pre, post, comb = (result[0].numpy() for result in results)
    return pre, post, comb


@pytest.mark.parametrize("mixes", [_oracle_mixes, _fast_mixes])
def test_mixes_of_an_untrained_layer(mixes: Callable[..., tuple[np.ndarray, ...]]) -> None:
    config = small_config()
    stream = np.random.default_rng(0).normal(size=(config.hc_mult, config.hidden_size))
    pre, post, comb = mixes(config, stream)
    assert pre == pytest.approx([0.952575, 0.047427, 0.047427, 0.047427], abs=1e-6)
    assert post == pytest.approx([1.0] * 4)
    diagonal = np.eye(4, dtype=bool)
    # 0.992616 and 0.002461 are the values before the last division by a sum of 1 + hc_eps.
    assert comb[diagonal] == pytest.approx(0.992616, abs=2e-6)
    assert comb[~diagonal] == pytest.approx(0.002461, abs=2e-6)


def test_yarn_slows_the_low_planes_of_nano() -> None:
    config = nano_config()
    plain = np.array(rope.plain_frequencies(config.compress_rope_theta, config.qk_rope_head_dim))
    yarn = config.rope_scaling
    assert yarn is not None
    fast = rotary.yarn_frequencies(
        config.compress_rope_theta, config.qk_rope_head_dim, factor=yarn.factor, beta_fast=yarn.beta_fast,
        beta_slow=yarn.beta_slow, original_length=yarn.original_max_position_embeddings,
    )  # fmt: skip
    for slowed in (np.array(rope.frequencies(config, 2)), np.array(fast)):
        assert slowed / plain == pytest.approx([1, 0.75, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25])


def test_yarn_ramp_of_the_published_model_runs_from_plane_15_to_25() -> None:
    fast = np.array(
        rotary.yarn_frequencies(
            160000.0, 64, factor=16.0, beta_fast=32.0, beta_slow=1.0, original_length=65536
        )
    )
    kept = fast / np.array(rope.plain_frequencies(160000.0, 64))
    assert kept[:16] == pytest.approx(1.0)
    assert kept[16] < 0.95
    assert kept[24] > 1 / 16 + 0.05
    assert kept[25:] == pytest.approx(1 / 16)


def test_engram_primes_of_nano() -> None:
    config = nano_config()
    expected = {1: [1009, 1013, 1019, 1021, 1031, 1033], 4: [1039, 1049, 1051, 1061, 1063, 1069]}
    assert engram.primes(config) == expected
    assert {t.layer_id: list(t.primes) for t in engram_tables(config)} == expected
    assert config.engram_num_embeddings == (6126, 6332)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (1, (14831304026200453, 936705081716061, 6959601268494069, 14319439928568407)),
        (4, (15920565596405625, 975009545214551, 14254820516660309, 3668506406680991)),
    ],
)
def test_engram_multipliers_of_nano(layer: int, expected: tuple[int, ...]) -> None:
    config = nano_config()
    assert tuple(engram.multipliers(config, layer, config.vocab_size)) == expected
    assert {t.layer_id: t.multipliers for t in engram_tables(config)}[layer] == expected


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (1, (76632096046245, 4839876093313, 35959672319349, 73987337458391)),
        (14, (67716810739261, 51510806800915, 30921347202721, 82619226485591)),
    ],
)
def test_engram_multipliers_of_the_published_model(layer: int, expected: tuple[int, ...]) -> None:
    config = small_config(engram_compressed_vocab_size=REAL_IDS, engram_layer_ids=(layer,))
    assert tuple(engram.multipliers(config, layer, REAL_IDS)) == expected
    assert engram_tables(config)[0].multipliers == expected


@pytest.mark.parametrize(
    ("ratio", "position", "visible"),
    [(2, 0, 0), (2, 1, 1), (2, 2, 1), (2, 3, 2), (1, 0, 1), (1, 7, 8)],
)
def test_visible_entries(ratio: int, position: int, visible: int) -> None:
    assert compressor.visible_entries(position, ratio) == visible
    row = plan_rows([position], [1], torch.device("cpu"))
    zero = torch.zeros(1, dtype=torch.int64)
    assert entry_index(row, zero[None], ratio, zero).visible.tolist() == [visible]
