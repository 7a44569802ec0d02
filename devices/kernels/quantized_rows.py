"""A table that is looked up, kept as the checkpoint stores it: FP8 rows with a scale per 32 columns.

The n-gram memory of a published model is most of its parameters, and a step reads a few hundred rows of
it; so they are expanded where they are gathered. Apart from `quantized.py` because nothing multiplies by a
table: its scales belong to rows, not to blocks.

Source: model_spec 4.6.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .quantized import GROUP
from .reference.quantization import dequantize_fp8


@dataclass(frozen=True)
class QuantizedRows:
    """`payload` float8_e4m3fn `[rows, columns]`, `scales` uint8 exponent bytes `[rows, columns / 32]`."""

    payload: Tensor
    scales: Tensor

    def __post_init__(self) -> None:
        rows, columns = self.payload.shape
        if columns % GROUP or tuple(self.scales.shape) != (rows, columns // GROUP):
            raise ValueError(
                f"scales of a table {[rows, columns]} are {list(self.scales.shape)}, not one per row and "
                f"{GROUP} columns"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.payload.shape)

    @property
    def device(self) -> torch.device:
        return self.payload.device

    @property
    def nbytes(self) -> int:
        return self.payload.nbytes + self.scales.nbytes

    def to(self, device: torch.device) -> QuantizedRows:
        return QuantizedRows(self.payload.to(device), self.scales.to(device))

    def take(self, rows: Tensor, dtype: torch.dtype) -> Tensor:
        """Rows `[...]` expanded, `[..., columns]`; exact in bfloat16 and wider."""
        # Bytes are gathered: not every device indexes FP8.
        payload = self.payload.view(torch.uint8)[rows].view(self.payload.dtype)
        return dequantize_fp8(payload, self.scales[rows], dtype)


Table = Tensor | QuantizedRows
"""What rows are taken from."""


def take_rows(table: Table, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows of a table in `dtype`."""
    if isinstance(table, QuantizedRows):
        return table.take(rows, dtype)
    return torch.nn.functional.embedding(rows, table).to(dtype)
