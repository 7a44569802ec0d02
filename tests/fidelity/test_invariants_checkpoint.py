"""Invariants 32 to 35 of model_spec 7.3: a model after a trip through files and through low precision.

The formats have tests of their own; here whole models make the trip and the oracle's reader looks over the
shoulder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stepahead.engine.model.checkpoint.errors import CheckpointError
from stepahead.engine.model.checkpoint.formats import fake_quantize, quantize
from stepahead.engine.model.checkpoint.layout import tensor_specs
from stepahead.engine.model.checkpoint.reader import CheckpointReader
from stepahead.engine.model.checkpoint.storage import StorageKind
from stepahead.engine.model.checkpoint.writer import write_checkpoint
from stepahead.engine.model.v41 import cache_sizes
from stepahead.engine.model.v41.config import load_config
from stepahead.engine.model.v41.numerics import Numerics, parity

from .configurations import nano_config, published_config
from .fast_path import FastModel
from .oracle import checkpoint
from .oracle import load_weights as oracle_weights
from .small import EXACT, Small, distance

SHARD_BYTES = 150_000


@pytest.fixture(scope="module")
def written(small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small model in the published layout, in several shards."""
    path = tmp_path_factory.mktemp("small") / "checkpoint"
    write_checkpoint(path, small.config, small.weights.items(), max_shard_bytes=SHARD_BYTES)
    return path


@pytest.fixture(scope="module")
def fake_quantized(small: Small) -> dict[str, torch.Tensor]:
    specs = tensor_specs(small.config)
    return {name: fake_quantize(weight, specs[name].kind) for name, weight in small.weights.items()}


def test_invariant_32_written_and_read_is_bitwise_the_fake_quantized_model(
    small: Small, written: Path, fake_quantized: dict[str, torch.Tensor]
) -> None:
    reader = CheckpointReader(written)
    reader.verify(tensor_specs(small.config))
    loaded = FastModel(load_config(written), reader).fresh_session().feed(small.tokens)
    expected = FastModel(small.config, fake_quantized).fresh_session().feed(small.tokens)
    assert np.array_equal(loaded.logits, expected.logits)
    assert distance(loaded.logits, small.trace.logits) > 1e-3  # quantization did happen


def test_invariant_32_every_tensor_is_consumed_exactly_once(small: Small, written: Path) -> None:
    reader = CheckpointReader(written)
    FastModel(small.config, reader)
    image_vectors = {"image_start", "image_end", "image_newline"}  # read by whoever embeds images
    assert set(reader.unread()) == image_vectors
    with pytest.raises(CheckpointError, match=r"embed\.weight"):
        reader.read("embed.weight", torch.float32)


def test_invariant_32_both_readers_see_the_same_weights(
    written: Path, fake_quantized: dict[str, torch.Tensor]
) -> None:
    second = oracle_weights(written)
    assert second.keys() == fake_quantized.keys()
    for name, weight in fake_quantized.items():
        assert np.array_equal(second[name], weight.numpy()), name


def test_invariant_32_a_weight_and_its_scale_may_lie_in_different_shards(written: Path) -> None:
    index = json.loads((written / "model.safetensors.index.json").read_text())["weight_map"]
    assert len(set(index.values())) > 2
    moved = _rearranged(
        written, lambda name, shard: "scales.safetensors" if name.endswith(".scale") else shard
    )
    _assert_same_weights(CheckpointReader(moved), CheckpointReader(written))


def test_invariant_32_names_may_have_the_model_prefix(written: Path) -> None:
    renamed = _rearranged(written, lambda _, shard: shard, prefix="model.")
    _assert_same_weights(CheckpointReader(renamed), CheckpointReader(written))


def _rearranged(source: Path, shard_of: Callable[[str, str], str], prefix: str = "") -> Path:
    """A copy of a checkpoint with its tensors moved to other files and renamed."""
    target = source.parent / f"rearranged{len(list(source.parent.iterdir()))}"
    target.mkdir()
    shards: dict[str, dict[str, torch.Tensor]] = {}
    for shard in sorted(source.glob("*.safetensors")):
        for name, tensor in load_file(shard).items():
            shards.setdefault(shard_of(name, shard.name), {})[prefix + name] = tensor
    for shard_name, tensors in shards.items():
        save_file(tensors, target / shard_name)
    weight_map = {name: shard_name for shard_name, tensors in shards.items() for name in tensors}
    (target / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (target / "config.json").write_bytes((source / "config.json").read_bytes())
    return target


def _assert_same_weights(actual: CheckpointReader, expected: CheckpointReader) -> None:
    assert sorted(actual.names()) == sorted(expected.names())
    for name in expected.names():
        assert torch.equal(actual.read(name, torch.float32), expected.read(name, torch.float32)), name


def test_invariant_32_missing_and_extra_tensors_are_all_named(small: Small, written: Path) -> None:
    damaged = _rearranged(written, lambda _, shard: shard)
    shard = sorted(damaged.glob("*.safetensors"))[0]
    tensors = load_file(shard)
    missing = next(iter(tensors))
    tensors["layers.0.attn.surprise"] = tensors.pop(missing).clone()
    save_file(tensors, shard)
    index_path = damaged / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    index["weight_map"]["layers.0.attn.surprise"] = index["weight_map"].pop(missing)
    index_path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(damaged).verify(tensor_specs(small.config))
    assert caught.value.problems.missing == [missing]
    assert caught.value.problems.extra == ["layers.0.attn.surprise"]


@pytest.mark.parametrize("kind", [StorageKind.FP8_BLOCK, StorageKind.FP8_ROWS, StorageKind.MXFP4])
@pytest.mark.parametrize("rows", [64, 50])
def test_invariant_33_quantizing_again_changes_nothing(kind: StorageKind, rows: int) -> None:
    """50 rows leave a partial last block of an FP8 weight."""
    weight = torch.randn(rows, 96, generator=torch.Generator().manual_seed(0))
    stored = quantize(weight, kind)
    once = stored.dequantize(torch.float64)
    assert torch.equal(quantize(once, kind).dequantize(torch.float64), once)
    payload, scales = stored.payload.view(torch.uint8).numpy(), stored.scales.numpy()
    if kind is StorageKind.MXFP4:
        second = checkpoint.mxfp4(payload, scales)
    else:
        second = checkpoint.blocked_fp8(payload, scales, 32 if kind is StorageKind.FP8_BLOCK else 1)
    assert np.array_equal(second, once.numpy())


def test_invariant_33_the_even_element_is_the_low_nibble() -> None:
    weight = torch.zeros(1, 32)
    weight[0, 0], weight[0, 1] = 6.0, -0.5
    stored = quantize(weight, StorageKind.MXFP4)
    assert stored.payload[0, 0].item() == (0b1001 << 4) | 0b0111
    assert stored.scales.tolist() == [[127]]


def test_invariant_33_a_nan_scale_is_rejected(small: Small, written: Path) -> None:
    damaged = _rearranged(written, lambda _, shard: shard)
    shard = sorted(damaged.glob("*.safetensors"))[0]
    tensors = load_file(shard)
    name = next(n for n in tensors if n.endswith(".scale"))
    tensors[name].view(torch.uint8)[0, 0] = 0xFF
    save_file(tensors, shard)
    with pytest.raises(CheckpointError) as caught:
        CheckpointReader(damaged).verify(tensor_specs(small.config))
    assert caught.value.problems.nan_scale == [name]


@pytest.mark.parametrize("lengths", [[1] * 60, [3] * 20, [17, 9]], ids=["one", "three", "two cuts"])
def test_invariant_34_quantization_commutes_with_chunking(small: Small, lengths: list[int]) -> None:
    """Every quantizer on, sums in float64: then no order of a sum crosses a rounding boundary.

    In bfloat16 the matrix library sums in an order that depends on the number of rows, and random weights
    amplify a last bit to a difference in the logits; that is not what the invariant is about.
    """
    model = FastModel(small.config, small.weights, Numerics(torch.float64, quantized=True))
    whole = model.fresh_session().feed(small.tokens)
    cut = model.fresh_session().feed_in_chunks(small.tokens, lengths)
    assert distance(cut.logits, whole.logits) < EXACT


def test_invariant_34_low_precision_stays_near_the_exact_model(small: Small) -> None:
    fed = FastModel(small.config, small.weights, parity()).fresh_session().feed(small.tokens)
    difference = np.abs(fed.logits - small.trace.logits)
    assert difference.max() > 1e-3
    assert np.corrcoef(fed.logits.ravel(), small.trace.logits.ravel())[0, 1] > 0.85


def test_invariant_35_bytes_of_entries_and_tokens() -> None:
    config = published_config()
    fp8 = msgspec.structs.replace(config, use_fp4_sparse_kv=False)
    assert cache_sizes.main_entry_bytes(config) == 288
    assert cache_sizes.main_entry_bytes(fp8) == 528
    assert cache_sizes.index_entry_bytes(config) == 68
    assert cache_sizes.window_entry_bytes(config) == 528
    assert cache_sizes.block_bytes_per_token(config) == 890
    assert cache_sizes.block_bytes_per_token(nano_config()) == 106
