"""Single modules at the low-precision level reproduce the publisher's bits (data/micro, n1.safetensors).

Bfloat16 with the quantizers on, on the prompt `tokens[:16]` at positions 0 to 15. Attention is equal as well,
because its probabilities are rounded tile by tile as the publisher documents. Checked on x86 with AVX2,
AVX-512 and AMX: the order of the float32 sums differs there and never crosses a rounding boundary on these
inputs.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from stepahead.devices.kernels.operations import REFERENCE
from stepahead.devices.kernels.reference.experts import Mixture, Routing
from stepahead.engine.model.v41.attention import Attention
from stepahead.engine.model.v41.batch import Batch, SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import Caches, CacheShape, allocate_caches, window_ring
from stepahead.engine.model.v41.compressed import Selections
from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.engram_tables import engram_tables
from stepahead.engine.model.v41.feed_forward import FeedForward
from stepahead.engine.model.v41.memory import Memory, Ngrams
from stepahead.engine.model.v41.numerics import Numerics, parity
from stepahead.engine.model.v41.roles import layer_roles
from stepahead.engine.model.v41.step import StepIndex, StepIndexer, rotary_tables
from stepahead.engine.model.v41.weights import ModelWeights, load_weights

from .configurations import MICRO
from .fast_path import CPU, NamedTensors
from .golden import Golden

ROWS, BLOCK, SLOT = 16, 1, 1


@dataclass(frozen=True)
class Parity:
    """The micro model at the low-precision level and one step over the first 16 tokens."""

    config: ModelConfig
    numerics: Numerics
    weights: ModelWeights
    vectors: dict[str, Tensor]
    batch: Batch
    step: StepIndex
    shape: CacheShape

    @classmethod
    def build(cls, golden: Golden) -> Parity:
        config, numerics = golden.config, parity()
        weights = load_weights(config, NamedTensors(golden.tensors), numerics, CPU)
        chunk = SequenceChunk(golden.tokens[:ROWS], 0, SLOT, [BLOCK])
        batch = build_batch([chunk], CPU, ngram=config.engram_max_ngram_size)
        shape = CacheShape(blocks=2, state_slots=2, max_rows=ROWS)
        tables = rotary_tables(config, numerics, CPU, ROWS)
        step = StepIndexer(config, layer_roles(config), tables, shape).producers(batch)
        vectors = load_file(MICRO / "n1.safetensors")
        return cls(config, numerics, weights, vectors, batch, step, shape)

    def new_caches(self) -> Caches:
        return allocate_caches(self.config, self.numerics, self.shape, CPU)

    def attend(self, layer: int) -> tuple[Tensor, Caches]:
        """The attention sublayer of a layer on its recorded input, and the caches it left."""
        role = layer_roles(self.config)[layer]
        attention = Attention(
            self.config, self.numerics, role, self.weights.blocks[layer].attention, REFERENCE
        )
        inputs, caches = self.vectors[f"attn{layer}_in"], self.new_caches()
        attention.store_entries(inputs, self.step, caches)
        return attention(inputs, self.step, caches, Selections(), None), caches

    def mixture(self, layer: int) -> Mixture:
        feed_forward = FeedForward(
            self.config, self.numerics, layer, self.weights.blocks[layer].ffn, REFERENCE
        )
        return Mixture(feed_forward.experts, self.config.swiglu_limit, True, torch.bfloat16)


@pytest.fixture(scope="module")
def modules(golden: Golden) -> Parity:
    return Parity.build(golden)


def assert_bits(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype is torch.bfloat16
    different = (actual != expected).sum().item()
    assert actual.shape == expected.shape
    assert different == 0, f"{different} of {actual.numel()} elements differ"


def test_quantized_linear(modules: Parity) -> None:
    weight = modules.weights.blocks[0].attention.query_a_kv[modules.config.q_lora_rank :]
    output = REFERENCE.linear(modules.numerics.matmul_input(modules.vectors["wkv_in"]), weight)
    assert_bits(output, modules.vectors["wkv_out"])


def test_window_keys(modules: Parity) -> None:
    _, caches = modules.attend(0)
    first = SLOT * window_ring(modules.config)
    assert_bits(caches.window[0][first : first + ROWS], modules.vectors["window_kv_layer0"])


@pytest.mark.parametrize("layer", [2, 5])
def test_compressed_entries_and_index_keys(modules: Parity, layer: int) -> None:
    _, caches = modules.attend(layer)
    count = ROWS // modules.config.compress_ratios[layer]
    per_block = caches.index_keys[layer].shape[1]
    entries = caches.entries[layer][BLOCK * per_block :][:count]
    assert_bits(entries, modules.vectors[f"compressed_kv_layer{layer}"])
    assert_bits(caches.index_keys[layer][BLOCK, :count], modules.vectors[f"index_key_layer{layer}"])


@pytest.mark.parametrize("layer", [0, 2, 5])
def test_attention(modules: Parity, layer: int) -> None:
    output, _ = modules.attend(layer)
    assert_bits(output, modules.vectors[f"attn{layer}_out"])


def test_routed_expert(modules: Parity) -> None:
    """Expert 0 of layer 3 on every row, with the recorded routing weights."""
    inputs, weights = modules.vectors["expert_in"], modules.vectors["expert_w"]
    chosen = torch.zeros(weights.shape, dtype=torch.int64)
    routed = modules.mixture(3).grouped(modules.numerics.matmul_input(inputs), Routing(chosen, weights))
    assert_bits(routed.to(torch.bfloat16), modules.vectors["expert_out"])


def test_shared_expert(modules: Parity) -> None:
    inputs = modules.numerics.matmul_input(modules.vectors["shared_in"])
    assert_bits(modules.mixture(3).shared(inputs).to(torch.bfloat16), modules.vectors["shared_out"])


def test_engram(modules: Parity) -> None:
    config = modules.config
    table = engram_tables(config)[0]
    weights = modules.weights.blocks[1].engram
    assert weights is not None
    memory = Memory(config, modules.numerics, 1, weights, table, CPU, REFERENCE)
    ngrams = Ngrams(config, None, CPU, REFERENCE)(modules.batch)
    assert_bits(memory(modules.vectors["engram_in"], ngrams, None, None), modules.vectors["engram_out"])
