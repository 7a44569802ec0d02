"""When matrices stay as a checkpoint stores them, and what of that a configuration may ask."""

from __future__ import annotations

import math

import pytest

from stepahead import EngineConfig
from stepahead.devices.kernels.operations import REFERENCE, Operations
from stepahead.engine.errors import ConfigError
from stepahead.engine.model.checkpoint.layout import tensor_specs
from stepahead.engine.model.opening import describe, keeps_stored, numerics_for


class Expanding(Operations):
    expands_weights = True


DESCRIBED = describe(None, numerics_for("cuda"))
EXPANDED = 2 * sum(math.prod(spec.shape) for spec in tensor_specs(DESCRIBED.config).values())


@pytest.mark.parametrize(
    ("choice", "operations", "free", "stored"),
    [
        (None, Expanding(), 2 * EXPANDED, False),
        (None, Expanding(), 2 * EXPANDED - 2, True),
        (None, REFERENCE, 0, False),
        ("stored", REFERENCE, 4 * EXPANDED, True),
        ("expanded", Expanding(), 0, False),
    ],
)
def test_weights_stay_stored(choice: str | None, operations: Operations, free: int, stored: bool) -> None:
    assert keeps_stored(choice, DESCRIBED, operations, free) is stored


def test_the_published_rounding_is_of_bfloat16() -> None:
    assert numerics_for("cpu", rounding="published").quantized
    with pytest.raises(ConfigError, match="dtype='float32'"):
        EngineConfig(rounding="published", dtype="float32")
    with pytest.raises(ConfigError, match="'none', 'published'"):
        EngineConfig(rounding="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'expanded', 'stored'"):
        EngineConfig(weights="fp8")  # type: ignore[arg-type]
