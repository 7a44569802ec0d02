"""How many bytes each cache of a model takes, derived from the configuration (model_spec 5.1 to 5.3).

The planner divides a device's memory by these numbers and `info` prints them, so they are defined once, next
to the model, and not measured from whatever tensors an implementation happens to allocate.
"""

from __future__ import annotations

from fractions import Fraction

from .config_types import ModelConfig
from .roles import layer_roles

_FP8_GROUP = 32
_FP4_GROUP_MAIN = 16
_FP4_GROUP_INDEX = 32
_FP32_BYTES = 4


def fp8_entry_bytes(width: int) -> int:
    """FP8 elements and a power-of-two scale byte per 32 of them."""
    return width + width // _FP8_GROUP


def fp4_entry_bytes(width: int, group: int) -> int:
    """FP4 elements, two per byte, and a scale byte per group."""
    return width // 2 + width // group


def main_entry_bytes(config: ModelConfig) -> int:
    """One compressed key-value entry."""
    if config.use_fp4_sparse_kv:
        return fp4_entry_bytes(config.head_dim, _FP4_GROUP_MAIN)
    return fp8_entry_bytes(config.head_dim)


def index_entry_bytes(config: ModelConfig) -> int:
    """One indexer key."""
    return fp4_entry_bytes(config.index_head_dim, _FP4_GROUP_INDEX)


def window_entry_bytes(config: ModelConfig) -> int:
    """One position of one layer's sliding window."""
    return fp8_entry_bytes(config.head_dim)


def compressor_slot_bytes(config: ModelConfig) -> int:
    """Gate and value in fp32 of one token in an unfinished group."""
    return 2 * config.head_dim * _FP32_BYTES


def block_bytes_per_token(config: ModelConfig) -> Fraction:
    """Block KV (compressed entries and indexer keys of all source layers) per token of a sequence."""
    total = Fraction(0)
    for role in layer_roles(config):
        if role.is_kv_source:
            total += Fraction(main_entry_bytes(config), role.ratio)
        if role.is_index_k_source:
            total += Fraction(index_entry_bytes(config), role.ratio)
    return total


def max_backtracking(config: ModelConfig) -> int:
    """Positions a verification round may take back: all drafts and the token before them."""
    return config.dspark_block_size + 1 if config.num_nextn_predict_layers else 1


def window_slots(config: ModelConfig) -> int:
    """Ring slots per sequence and layer: the window, and room for positions taken back."""
    return config.sliding_window + max_backtracking(config)


def compressor_slots(config: ModelConfig, ratio: int) -> int:
    """Ring slots per sequence and compressor of that ratio."""
    return ratio + max(0, max_backtracking(config) - 1)


def window_bytes_per_sequence(config: ModelConfig) -> int:
    """Window rings of all trunk and draft layers of one sequence."""
    return len(layer_roles(config)) * window_slots(config) * window_entry_bytes(config)


def compressor_bytes_per_sequence(config: ModelConfig) -> int:
    """Unfinished groups of all compressors that pool more than one token, of one sequence."""
    ratios = [role.ratio for role in layer_roles(config) if role.is_kv_source and role.ratio > 1]
    return sum(compressor_slots(config, ratio) for ratio in ratios) * compressor_slot_bytes(config)
