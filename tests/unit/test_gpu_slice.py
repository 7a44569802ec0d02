"""The full-width slice without a card: its configuration, and the arithmetic of its floors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stepahead.engine.model.v41.roles import Selection, layer_roles
from stepahead.engine.model.v41.weights import weight_bytes


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Any]:
    """The benchmark's modules, with weights that have shapes and no memory."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
    try:
        from benchmarks import gpu_slice_floors, gpu_slice_model
    finally:
        sys.path.pop(0)
    device, gpu_slice_model.DEVICE = gpu_slice_model.DEVICE, torch.device("meta")
    yield gpu_slice_model, gpu_slice_floors
    gpu_slice_model.DEVICE = device


class _Slice:
    def __init__(self, module: Any) -> None:
        self.config = module.slice_config()
        self.weights = module.slice_weights(self.config)


def test_the_six_layers_are_the_six_kinds(benchmarks: Any) -> None:
    roles = layer_roles(benchmarks[0].slice_config())
    window, full = Selection.WINDOW, Selection.FULL
    assert [r.selection for r in roles] == [window, window, full, Selection.REUSE, full, Selection.REINDEX]
    assert [r.has_engram for r in roles] == [False, True, False, False, False, False]
    assert [r.is_candidate_source for r in roles].index(True) == 4
    assert roles[5].uses_candidates
    assert [r.is_consumer for r in roles] == [False] * 4 + [True] * 2


def test_floors_count_stored_bytes_once_and_only_chosen_experts(benchmarks: Any) -> None:
    model, floors = _Slice(benchmarks[0]), benchmarks[1]
    few, many = (floors.step_work(model, 8, 1024, 1, distinct) for distinct in (60, 120))
    expert = 3 * 5120 * 2304 * (0.5 + 1 / 32)
    assert many["experts"].bytes - few["experts"].bytes == pytest.approx(60 * expert)
    assert few["head"].bytes == weight_bytes(model.weights.head)
    stored = sum(weight_bytes(block.attention.query_b) for block in model.weights.blocks)
    assert stored == pytest.approx(6 * 32768 * 1280 * (1 + 1 / 1024))
    assert few["linear"].bytes > stored
    # Twice the rows: twice the operations, the same weights.
    double = floors.step_work(model, 16, 1024, 1, 60)
    assert double["linear"] == floors.Work(few["linear"].bytes, 2 * few["linear"].flops)


def test_a_floor_is_the_slower_of_moving_and_computing(benchmarks: Any) -> None:
    floors = benchmarks[1]
    rates = floors.Ceilings(copy=4e12, product=8e14)
    assert floors.Work(4e6, 0).floor(rates) == pytest.approx(1.0)
    assert floors.Work(4e6, 8e9).floor(rates) == pytest.approx(10.0)
    assert floors.Work.sum({"a": floors.Work(1, 2), "b": floors.Work(3, 4)}) == floors.Work(4, 6)
