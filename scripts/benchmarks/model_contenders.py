"""The two models that are compared, behind one interface: feed prompts, then decode greedily.

Ours is the built-in model. The peer is transformers' DeepSeek V4 with the same dimensions: width, heads,
experts, vocabulary, window, top-k, number of layers. V4 cannot be told the rest, and what differs is named
here so that the ratio can be read: it compresses 2 tokens in every compressed layer (ours 2 or 1, so ours
has up to twice the entries); each compressed layer has a compressor and an indexer of its own (ours shares
those of 3 layers); it has no n-gram memory and no draft block (ours looks up 2 and writes the keys of 3
draft layers). Both compute in float32 with random weights, time depending on shapes only.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch
from torch import Tensor

from stepahead.engine.model.opening import open_model
from stepahead.engine.model.v41.batch import SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import CacheShape
from stepahead.engine.model.v41.config import ModelConfig
from stepahead.engine.model.v41.rows import BLOCK_TOKENS

FEED_ROWS = 2048
"""Most rows of one forward while contexts are filled: the peer's eager attention needs gigabytes beyond."""


class Decoding(Protocol):
    """Sequences in their caches."""

    def step(self) -> None:
        """One greedy token for every sequence."""


class Contender(Protocol):
    parameters: int

    def prefill(self, prompt: Tensor) -> Decoding:
        """Feed `[sequences, tokens]` int64 and choose the first token of each."""


class _OurDecoding:
    def __init__(self, ours: Ours, sequences: int, room: int) -> None:
        self._model, self._ngram = ours.model, ours.config.engram_max_ngram_size
        per_sequence = -(-room // BLOCK_TOKENS)
        self._tables = [range(1 + i * per_sequence, 1 + (i + 1) * per_sequence) for i in range(sequences)]
        shape = CacheShape(1 + sequences * per_sequence, 1 + sequences, FEED_ROWS)
        self._caches = self._model.new_caches(shape)
        self._tokens: list[list[int]] = [[] for _ in range(sequences)]

    def feed(self, numbers: range, tokens: list[list[int]]) -> None:
        """Append tokens to some sequences and one chosen token to each."""
        chunks = []
        for number, new in zip(numbers, tokens, strict=True):
            known = self._tokens[number]
            chunks.append(SequenceChunk(new, len(known), 1 + number, self._tables[number], known[-3:]))
        batch = build_batch(chunks, self._model.device, ngram=self._ngram)
        last = batch.rows.row_start + batch.rows.length - 1
        logits = self._model.forward(dataclasses.replace(batch, logit_rows=last), self._caches).logits
        chosen = logits.argmax(-1).tolist()
        for number, new, token in zip(numbers, tokens, chosen, strict=True):
            self._tokens[number] += [*new, token]

    def step(self) -> None:
        self.feed(range(len(self._tokens)), [[tokens.pop()] for tokens in self._tokens])


class Ours:
    """The built-in model, forward after forward, the host's work for each step included."""

    def __init__(self) -> None:
        opened = open_model(random_weights=True)
        self.config, self.model = opened.config, opened.model
        self.parameters = sum(tensor.numel() for tensor in _tensors(self.model.weights))

    def prefill(self, prompt: Tensor) -> Decoding:
        sequences, length = prompt.shape
        decoding = _OurDecoding(self, sequences, length + BLOCK_TOKENS)
        group, chunk = _feeding(sequences, length)
        rows = prompt.tolist()
        for first in range(0, sequences, group):
            numbers = range(first, min(first + group, sequences))
            for start in range(0, length, chunk):
                if start:
                    for number in numbers:
                        decoding._tokens[number].pop()  # only the last chunk's choice counts
                decoding.feed(numbers, [rows[number][start : start + chunk] for number in numbers])
        return decoding


def _tensors(value: Any) -> list[Tensor]:
    """All tensors of nested dataclasses and tuples."""
    if isinstance(value, Tensor):
        return [value]
    if dataclasses.is_dataclass(value):
        value = tuple(getattr(value, field.name) for field in dataclasses.fields(value))
    return [tensor for part in value for tensor in _tensors(part)] if isinstance(value, tuple) else []


def _feeding(sequences: int, length: int) -> tuple[int, int]:
    """Sequences at a time and tokens at a time, so that a forward has at most `FEED_ROWS` rows."""
    chunk = min(length, FEED_ROWS)
    return max(FEED_ROWS // chunk, 1), chunk


class _PeerDecoding:
    def __init__(self, model: Any, caches: list[Any], tokens: Tensor) -> None:
        self._model, self._cache, self._tokens = model, _joined(caches), tokens

    @torch.inference_mode()
    def step(self) -> None:
        logits = self._model(self._tokens, cache=self._cache, use_cache=True, logits_to_keep=1).logits
        self._tokens = logits[:, -1:].argmax(-1)


class Peer:
    """`DeepseekV4ForCausalLM` with grouped products for experts, its fastest way on a CPU."""

    def __init__(self, config: ModelConfig) -> None:
        self.model = peer_model(config)
        self.parameters = sum(parameter.numel() for parameter in self.model.parameters())

    @torch.inference_mode()
    def prefill(self, prompt: Tensor) -> Decoding:
        from transformers.cache_utils import DynamicCache

        group, chunk = _feeding(*prompt.shape)
        caches, chosen = [], []
        for rows in prompt.split(group):
            cache = DynamicCache(config=self.model.config)
            for tokens in rows.split(chunk, dim=1):
                logits = self.model(tokens, cache=cache, use_cache=True, logits_to_keep=1).logits
            caches.append(cache)
            chosen.append(logits[:, -1:].argmax(-1))
        return _PeerDecoding(self.model, caches, torch.cat(chosen))


def _joined(caches: list[Any]) -> Any:
    """One cache with the sequences of several: all that a layer keeps by sequence, stacked."""
    first = caches[0]
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        target = layers[0]
        for name, value in vars(target).items():
            parts = [getattr(layer, name) for layer in layers]
            if isinstance(value, Tensor) and value.ndim:
                setattr(target, name, torch.cat(parts))
            elif isinstance(value, dict) and any(isinstance(part, Tensor) for part in value.values()):
                joined = {key: torch.cat([part[key] for part in parts]) for key in value}
                setattr(target, name, joined)
        target.values = target.keys  # one vector is both
    return first


def peer_model(config: ModelConfig) -> Any:
    """V4 of our dimensions with random weights."""
    from transformers import DeepseekV4ForCausalLM

    torch.manual_seed(0)
    model = DeepseekV4ForCausalLM(peer_config(config)).eval()
    model.set_experts_implementation("grouped_mm")
    return model


def peer_config(config: ModelConfig) -> Any:
    """V4 with our dimensions: layers without compression slide, all others select from compressed entries."""
    from transformers import DeepseekV4Config

    scaling = config.rope_scaling
    assert scaling is not None
    layers = config.num_hidden_layers
    kinds = {True: "compressed_sparse_attention", False: "sliding_attention"}
    return DeepseekV4Config(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        partial_rotary_factor=config.qk_rope_head_dim / config.head_dim,
        q_lora_rank=config.q_lora_rank,
        o_groups=config.o_groups,
        o_lora_rank=config.o_lora_rank,
        sliding_window=config.sliding_window,
        layer_types=[kinds[ratio > 0] for ratio in config.compress_ratios[:layers]],
        compress_rates={"compressed_sparse_attention": 2, "heavily_compressed_attention": 128},
        index_n_heads=config.index_n_heads,
        index_head_dim=config.index_head_dim,
        index_topk=config.index_topk,
        hc_mult=config.hc_mult,
        hc_sinkhorn_iters=config.hc_sinkhorn_iters,
        mlp_layer_types=["moe"] * layers,
        n_routed_experts=config.n_routed_experts,
        num_experts_per_tok=config.num_experts_per_tok,
        n_shared_experts=config.n_shared_experts,
        moe_intermediate_size=config.moe_intermediate_size,
        max_position_embeddings=config.max_position_embeddings,
        rope_parameters={
            "rope_type": "yarn",
            "factor": float(scaling.factor),
            "beta_fast": scaling.beta_fast,
            "beta_slow": scaling.beta_slow,
            "original_max_position_embeddings": scaling.original_max_position_embeddings,
        },
    )
