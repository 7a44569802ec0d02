"""Pooling of neighbouring positions into one compressed entry (model_spec 2.6)."""

from __future__ import annotations

from torch import Tensor


def pool_group(values_rows_group_dim: Tensor, gates_rows_group_dim: Tensor) -> Tensor:
    """Per channel, the softmax-of-gates average over the group: `[rows, dim]` in the (wide) input type."""
    return (gates_rows_group_dim.softmax(dim=1) * values_rows_group_dim).sum(dim=1)
