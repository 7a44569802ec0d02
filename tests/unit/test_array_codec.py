"""Structs of arrays cross as lists of arrays and come back the same."""

from __future__ import annotations

import numpy as np
import pytest

from stepahead.engine.model.array_codec import decode, encode
from stepahead.engine.model.runner import BatchLayout, SamplePlan, SamplingRows, StepResult

from .hashed_driver import int32, request, sampling_rows


def _same(one: object, other: object) -> bool:
    if isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray)
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    fields = getattr(one, "__struct_fields__", None)
    if fields is None:
        return one == other
    return all(_same(getattr(one, name), getattr(other, name)) for name in fields)


@pytest.mark.parametrize("masks", [None, np.ones((2, 3), dtype=np.uint32)])
def test_a_plan_with_a_nested_struct_returns(masks: np.ndarray | None) -> None:
    rows = sampling_rows([request(1, [1]), request(2, [2], end_ids=(5, 6))], [3, 4])
    plan = SamplePlan(step=2**40, updates=rows, logprobs=-1, all_greedy=True, masks=masks)
    back = decode(encode(plan), SamplePlan, {"updates": SamplingRows, "layout": BatchLayout})
    assert isinstance(back.updates, SamplingRows)
    assert _same(plan, back)
    assert back.updates.seed.dtype == np.uint64


def test_empty_and_missing_arrays_return() -> None:
    result = StepResult(
        step=0,
        tokens=int32([], 3),
        emitted=int32([]),
        drafted=int32([]),
        positions=int32([]),
        finite=np.array([], dtype=np.bool_),
        top_tokens=np.zeros((0, 2, 5), dtype=np.int32),
    )
    back = decode(encode(result), StepResult, {})
    assert back.logprobs is None
    assert _same(result, back)
