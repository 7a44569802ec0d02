"""A weight that stays in memory as the checkpoint stores it: short codes and their power-of-two scales.

Expanded to bfloat16 the experts of a published model take 3.8 times their 4-bit size, and a decode step is
bound by reading them. So an operation that multiplies by a weight takes either a plain tensor or this, and
expands where it multiplies: a kernel in registers, the reference twin in memory. Rejected: a subclass of
Tensor, which every operation of torch would accept and silently misread.

Nothing is permuted: bytes and order are the file's, so keeping a weight quantized loses nothing, and an
architecture with block-scaled matrix units finds the layout those want.

Source: model_spec 4.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor

from .reference.quantization import decode_e2m1, decode_ue8m0, unpack_nibbles

GROUP = 32
"""Elements along the input dimension that share a scale; FP8 blocks are as many rows high."""


class WeightFormat(Enum):
    """How the codes of a weight are stored, and the largest scale byte the kernels expand exactly.

    Kernels place a code's bits in a bfloat16 and multiply once by the scale times a constant, and that factor
    must be finite. Published weights are far below: their scales are under one (byte 127).
    """

    FP8_BLOCK = "fp8 e4m3, a scale per 32 x 32 block"
    MXFP4 = "fp4 e2m1, two codes a byte, a scale per row and 32 columns"

    @property
    def largest_scale(self) -> int:
        return 134 if self is WeightFormat.FP8_BLOCK else 128


@dataclass(frozen=True)
class QuantizedWeight:
    """A matrix `[..., out, in]`, or a stack of them; `in` is a multiple of 32.

    `payload`: float8_e4m3fn `[..., out, in]`, or for MXFP4 uint8 `[..., out, in / 2]` with the even element
    in the low nibble. `scales`: uint8 exponent bytes, `[..., ceil(out / 32), in / 32]` for FP8 blocks and
    `[..., out, in / 32]` for MXFP4.
    """

    payload: Tensor
    scales: Tensor
    format: WeightFormat

    def __post_init__(self) -> None:
        *stack, rows, columns = self.shape
        scale_rows = -(-rows // GROUP) if self.format is WeightFormat.FP8_BLOCK else rows
        expected = (*stack, scale_rows, columns // GROUP)
        if columns % GROUP or tuple(self.scales.shape) != expected:
            raise ValueError(
                f"scales of a {self.format.name} weight {list(self.shape)} are {list(self.scales.shape)}, "
                f"expected {list(expected)} and columns in groups of {GROUP}"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the weight, not of its payload."""
        *leading, columns = self.payload.shape
        return (*leading, columns * 2 if self.format is WeightFormat.MXFP4 else columns)

    @property
    def device(self) -> torch.device:
        return self.payload.device

    @property
    def nbytes(self) -> int:
        return self.payload.nbytes + self.scales.nbytes

    def __getitem__(self, rows: slice) -> QuantizedWeight:
        """Some rows of a single matrix, without a copy; of FP8 blocks only whole ones."""
        start, stop, step = rows.indices(self.shape[-2])
        if self.payload.dim() != 2 or step != 1:
            raise ValueError("only consecutive rows of a single matrix can be taken")
        height = GROUP if self.format is WeightFormat.FP8_BLOCK else 1
        if start % height or (stop % height and stop != self.shape[-2]):
            raise ValueError(f"rows {start} to {stop} cut a block of {height} rows that share a scale")
        scales = self.scales[start // height : -(-stop // height)]
        return QuantizedWeight(self.payload[start:stop], scales, self.format)

    def view(self, *shape: int) -> QuantizedWeight:
        """The same rows as a stack of matrices `[stack, out, in]`; a matrix holds whole blocks."""
        stack, rows, columns = shape
        height = GROUP if self.format is WeightFormat.FP8_BLOCK else 1
        if stack * rows != self.shape[-2] or columns != self.shape[-1] or rows % height:
            raise ValueError(f"a weight {list(self.shape)} is no stack {list(shape)} of whole blocks")
        payload = self.payload.view(stack, rows, -1)
        return QuantizedWeight(payload, self.scales.view(stack, rows // height, -1), self.format)

    def to(self, device: torch.device) -> QuantizedWeight:
        return QuantizedWeight(self.payload.to(device), self.scales.to(device), self.format)

    def dequantize(self, dtype: torch.dtype) -> Tensor:
        """The weight in bfloat16 or wider, which is exact."""
        scales = decode_ue8m0(self.scales).to(dtype)
        if self.format is WeightFormat.FP8_BLOCK:
            scales = scales.repeat_interleave(GROUP, dim=-2)[..., : self.shape[-2], :]
            values = self.payload.to(dtype)
        else:
            values = decode_e2m1(unpack_nibbles(self.payload)).to(dtype)
        grouped = values.view(*values.shape[:-1], -1, GROUP)
        return (grouped * scales.unsqueeze(-1)).view(self.shape)


Weight = Tensor | QuantizedWeight
"""What an operation multiplies by."""


def plain(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weight as a tensor: itself, or expanded to `dtype`."""
    return weight.dequantize(dtype) if isinstance(weight, QuantizedWeight) else weight


def concatenate(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Matrices of one format and width under each other; FP8 blocks but the last matrix's must be whole."""
    first, *others = weights
    height = GROUP if first.format is WeightFormat.FP8_BLOCK else 1
    if any(w.format is not first.format for w in others) or any(w.shape[-2] % height for w in weights[:-1]):
        raise ValueError("only matrices of one format and of whole blocks can be stacked")
    payload = torch.cat([weight.payload.view(torch.uint8) for weight in weights]).view(first.payload.dtype)
    return QuantizedWeight(payload, torch.cat([weight.scales for weight in weights]), first.format)


def is_mxfp4(weight: Weight) -> bool:
    return isinstance(weight, QuantizedWeight) and weight.format is WeightFormat.MXFP4
