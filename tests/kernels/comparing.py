"""Relative error of a kernel against its reference twin in float64, and inputs that catch careless ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 6e-3}
"""Of the whole tensor, `|out - ref| / |ref|`: sums in another order, one rounding to the type."""


def relative_error(out: Tensor, reference: Tensor) -> float:
    """NaN where either holds one; 0 for two empty tensors."""
    assert out.shape == reference.shape, (out.shape, reference.shape)
    wide, expected = out.to(torch.float64), reference.to(torch.float64)
    if expected.numel() == 0:
        return 0.0
    scale = torch.linalg.vector_norm(expected)
    return float(torch.linalg.vector_norm(wide - expected) / scale.clamp(min=1e-300))


def assert_close(out: Tensor, reference: Tensor, tolerance: float | None = None) -> None:
    """`reference` in float64; the tolerance is that of the type of `out` unless given."""
    limit = TOLERANCE[out.dtype] if tolerance is None else tolerance
    error = relative_error(out, reference)
    assert error <= limit, f"relative error {error:.3g} is above {limit:.3g}"


def widened(*tensors: Tensor) -> list[Tensor]:
    """Floating tensors in float64, others as they are: the inputs of a reference run."""
    return [t.to(torch.float64) if t.is_floating_point() else t for t in tensors]


def assert_rows_independent(
    run: Callable[[Sequence[Tensor]], Tensor | tuple[Tensor, ...]], inputs: Sequence[Tensor], row: int = 0
) -> None:
    """A row alone in a call gives, bit for bit, what it gives among the others.

    `inputs` are the tensors whose first dimension is rows, and so are all results.
    """
    whole, alone = run(inputs), run([x[row : row + 1].contiguous() for x in inputs])
    whole, alone = ((x,) if isinstance(x, Tensor) else x for x in (whole, alone))
    for among, single in zip(whole, alone, strict=True):
        assert torch.equal(among[row : row + 1], single)
