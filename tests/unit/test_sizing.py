"""Sizes of an engine, derived once: wide enough for what is in flight, and refused when they cannot be."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stepahead.engine.config import EngineConfig
from stepahead.engine.errors import ConfigError
from stepahead.engine.model.runner import ModelFacts
from stepahead.engine.sizing import request_limits, runner_shape, scheduling_limits

FACTS = ModelFacts(
    vocab_size=1000,
    eos_token_ids=(1,),
    max_positions=4096,
    block_tokens=128,
    block_bytes=1000,
    state_bytes=500,
    draft_tokens=5,
    backtracking=6,
    hit_margin=1,
)
PLENTY = 1 << 40


def test_positions_in_flight_are_positions_of_the_model() -> None:
    shape = runner_shape(EngineConfig(), FACTS, PLENTY)
    assert shape.max_positions == FACTS.max_positions
    assert shape.table_columns * FACTS.block_tokens >= shape.max_positions
    limits = request_limits(EngineConfig(), FACTS, shape)
    assert (limits.context, limits.lookahead) == (4096 - 12, 12)
    assert scheduling_limits(EngineConfig(), FACTS, shape).max_context == 4096 - 12


def test_a_table_covers_a_context_that_just_fits_its_blocks() -> None:
    shape = runner_shape(EngineConfig(max_context=1024), FACTS, PLENTY)
    assert (shape.max_positions, shape.table_columns) == (1036, 9)


def test_blocks_are_what_fits_or_what_can_be_used() -> None:
    config = EngineConfig(max_sequences=4, memory_fraction=0.5, snapshot_slots=3)
    states = (1 + 4 + 3) * FACTS.state_bytes
    assert runner_shape(config, FACTS, states + 20_000).blocks == 10
    useful = runner_shape(config, FACTS, PLENTY)
    assert useful.blocks == 1 + 4 * useful.table_columns
    assert runner_shape(msgspec.structs.replace(config, kv_blocks=7), FACTS, 0).blocks == 7


def test_without_a_prefix_cache_no_state_is_kept() -> None:
    assert runner_shape(EngineConfig(prefix_cache=False), FACTS, PLENTY).snapshot_slots == 0
    assert runner_shape(EngineConfig(max_sequences=9), FACTS, PLENTY).snapshot_slots == 9


@pytest.mark.parametrize(
    ("knobs", "field"),
    [
        ({"max_step_rows": 256 * 6 - 1}, "max_step_rows"),
        ({"max_context": 4096 - 11}, "max_context"),
        ({"draft_tokens": 6}, "draft_tokens"),
        ({"draft_tokens": 3, "verify": 4}, "verify"),
        ({"verify": 33}, "verify"),
        ({"verify": 0}, "verify"),
        ({"verify": "some"}, "verify"),
        ({"kv_blocks": 1}, "kv_blocks"),
        ({"memory_fraction": 1e-12}, "memory_fraction"),
    ],
)
def test_a_knob_that_cannot_be_honoured_is_named(knobs: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        runner_shape(EngineConfig(**knobs), FACTS, PLENTY)
    assert caught.value.field == field


def test_speculation_can_be_off() -> None:
    shape = runner_shape(EngineConfig(draft_tokens=0), FACTS, PLENTY)
    assert (shape.draft_tokens, shape.max_positions) == (0, 4096)
