"""Bytes of every cache, against the published layout (model_spec 5.1 to 5.3)."""

from __future__ import annotations

import msgspec

from stepahead.engine.model.v41 import cache_sizes
from stepahead.engine.model.v41.config import parse_config

from .model_documents import nano_document, real_document, tiny_document

REAL = parse_config(real_document())
NANO = parse_config(nano_document())


def test_invariant_35_entries_of_the_published_model() -> None:
    assert cache_sizes.main_entry_bytes(REAL) == 288
    assert cache_sizes.main_entry_bytes(msgspec.structs.replace(REAL, use_fp4_sparse_kv=False)) == 528
    assert cache_sizes.index_entry_bytes(REAL) == 68
    assert cache_sizes.window_entry_bytes(REAL) == 528
    assert cache_sizes.compressor_slot_bytes(REAL) == 4096


def test_invariant_35_block_bytes_per_token() -> None:
    assert cache_sizes.block_bytes_per_token(REAL) == 890
    assert cache_sizes.block_bytes_per_token(REAL) * 128 == 113_920
    assert cache_sizes.block_bytes_per_token(NANO) == 106


def test_state_of_one_published_sequence() -> None:
    assert cache_sizes.max_backtracking(REAL) == 6
    assert cache_sizes.window_slots(REAL) == 134
    assert cache_sizes.compressor_slots(REAL, 2) == 7
    producers = 20 * cache_sizes.window_slots(REAL) * cache_sizes.window_entry_bytes(REAL)
    assert producers == 1_415_040
    windows = cache_sizes.window_bytes_per_sequence(REAL)
    compressors = cache_sizes.compressor_bytes_per_sequence(REAL)
    assert compressors == 86_016
    assert windows + compressors - producers == 1_713_312


def test_nano_rings() -> None:
    assert cache_sizes.window_slots(NANO) == 22
    assert cache_sizes.compressor_slots(NANO, 2) == 7
    assert cache_sizes.window_entry_bytes(NANO) == 66


def test_without_drafts_a_single_position_can_be_taken_back() -> None:
    tiny = parse_config(tiny_document())
    assert cache_sizes.max_backtracking(tiny) == 1
    assert cache_sizes.compressor_slots(tiny, 2) == 2
