"""Every row of the edge-value table behaves as the table says, and every knob keeps its bounds."""

from __future__ import annotations

import ast
import inspect

import msgspec
import numpy as np
import pytest

from stepahead.engine import errors
from stepahead.engine.config import EDGE_VALUES, EdgeValue, EngineConfig, RequestLimits
from stepahead.engine.types import ResolvedParams, SamplingParams
from stepahead.engine.validation import validate

ROOMY = RequestLimits(
    vocab_size=100,
    context=64,
    block_tokens=8,
    usable_blocks=100,
    lookahead=4,
    eos_token_ids=(1,),
    max_logprobs=20,
    max_stop_ids=4,
)
TIGHT = msgspec.structs.replace(ROOMY, usable_blocks=4)


def _submit(row: EdgeValue, limits: RequestLimits) -> ResolvedParams:
    return validate(np.array(row.prompt(limits), dtype=np.int32), row.params(limits), limits)


@pytest.mark.parametrize("row", EDGE_VALUES, ids=lambda row: row.case)
def test_edge_value(row: EdgeValue) -> None:
    limits = TIGHT if row.outcome is errors.PromptNeverFitsError else ROOMY
    if isinstance(row.outcome, type):
        with pytest.raises(row.outcome) as caught:
            _submit(row, limits)
        assert isinstance(caught.value, ValueError)
        return
    resolved = _submit(row, limits)
    assert {field: getattr(resolved, field) for field in row.outcome} == row.outcome


def test_output_is_capped_by_the_context() -> None:
    resolved = validate(np.zeros(60, np.int32), SamplingParams(max_tokens=2**31), ROOMY)
    assert resolved.max_output == 4


def test_output_is_capped_by_the_pool_so_that_a_lone_sequence_always_ends() -> None:
    resolved = validate(np.zeros(20, np.int32), SamplingParams(), TIGHT)
    assert resolved.max_output == 4 * 8 - 4 - 20


def test_end_ids_hold_end_of_text_unless_ignored() -> None:
    prompt = np.zeros(2, np.int32)
    assert validate(prompt, SamplingParams(stop_token_ids=(7, 1)), ROOMY).end_ids == (1, 7)
    assert validate(prompt, SamplingParams(stop_token_ids=(7,), ignore_eos=True), ROOMY).end_ids == (7,)


def test_too_many_stop_ids_are_refused() -> None:
    with pytest.raises(errors.InvalidParameterError, match="at most 4 ids"):
        validate(np.zeros(2, np.int32), SamplingParams(stop_token_ids=(2, 3, 4, 5)), ROOMY)


def test_unseeded_requests_get_different_seeds() -> None:
    prompt = np.zeros(2, np.int32)
    assert len({validate(prompt, SamplingParams(), ROOMY).seed for _ in range(4)}) == 4


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_sequences", 0),
        ("memory_fraction", 0.0),
        ("kv_blocks", 1),
        ("queue_policy", "drop"),
        ("max_context", 1),
    ],
)
def test_a_knob_outside_its_bounds_names_itself(field: str, value: object) -> None:
    with pytest.raises(errors.ConfigError, match=rf"EngineConfig\.{field}="):
        EngineConfig(**{field: value})


def test_every_knob_states_its_reason() -> None:
    """A field is followed by a string that says why it exists."""
    (definition,) = ast.parse(inspect.getsource(EngineConfig)).body
    assert isinstance(definition, ast.ClassDef)
    pairs = zip(definition.body, definition.body[1:], strict=False)
    reasoned = {
        field.target.id
        for field, reason in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(reason, ast.Expr)
    }
    assert reasoned == set(EngineConfig.__struct_fields__)


def test_a_config_survives_a_file() -> None:
    config = EngineConfig(kv_blocks=7, overlap=False)
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config
