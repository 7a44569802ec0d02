"""The numeric level of a model: which types, and whether low precision is imitated (model_spec 2.0).

One code path serves both levels. `exact` computes everything in one float type and quantizes nothing: the
level of the structural tests, and of the small model on a CPU. `parity` rounds exactly where the published
engine stores or multiplies in low precision, with bfloat16 between: the level at which real checkpoints are
compared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepahead.devices.kernels.operations import REFERENCE, Operations
from stepahead.devices.kernels.reference import quantization
from stepahead.devices.kernels.reference.norm import wide_dtype


@dataclass(frozen=True)
class Numerics:
    """Types and roundings of one model."""

    dtype: torch.dtype
    """Activations, matrices and caches."""
    quantized: bool = False
    """Round activations and cache entries as the published engine does (model_spec 4.6)."""
    quantize_output_lora: bool = False
    """Also round the input of `wo_a` to FP8, as production engines do and the publisher's code does not."""
    fp4_entries: bool = True
    """Compressed entries are FP4 with e4m3 scales; otherwise FP8 (`use_fp4_sparse_kv`)."""

    @property
    def wide(self) -> torch.dtype:
        """Norms, softmax, mixes, routing, pooling and logits."""
        return wide_dtype(self.dtype)

    def matmul_input(self, x: Tensor, operations: Operations = REFERENCE) -> Tensor:
        return operations.fp8_round_trip(x) if self.quantized else x

    def output_lora_input(self, x: Tensor, operations: Operations = REFERENCE) -> Tensor:
        return self.matmul_input(x, operations) if self.quantize_output_lora else x

    @property
    def window_form(self) -> quantization.Format:
        """Format of window keys in their cache."""
        return "fp8" if self.quantized else "plain"

    @property
    def index_form(self) -> quantization.Format:
        """Format of index keys in their cache, and of the queries that meet them."""
        return "fp4_ue8m0" if self.quantized else "plain"

    @property
    def entry_form(self) -> quantization.Format:
        """Format of compressed entries in their cache."""
        if not self.quantized:
            return "plain"
        return "fp4_e4m3" if self.fp4_entries else "fp8"


def exact(dtype: torch.dtype = torch.float32) -> Numerics:
    return Numerics(dtype=dtype)


def parity(*, fp4_entries: bool = True) -> Numerics:
    return Numerics(dtype=torch.bfloat16, quantized=True, fp4_entries=fp4_entries)
