"""The activation and cache quantizers reproduce the publisher's bits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from stepahead.devices.kernels.reference import quantization as q

VECTORS = Path(__file__).parent / "data" / "micro" / "n1.safetensors"

ROUND_TRIPS = {
    "quant_fp8_g32": q.fp8_round_trip,
    "quant_fp4_g32_ue8m0": q.fp4_round_trip_ue8m0,
    "quant_fp4_g16_e4m3": q.fp4_round_trip_e4m3,
}


@pytest.mark.parametrize("key", ROUND_TRIPS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_round_trip_is_bit_exact(key: str, dtype: torch.dtype) -> None:
    vectors = load_file(VECTORS)
    result = ROUND_TRIPS[key](vectors["quant_in"].to(dtype))
    assert result.dtype is dtype
    # Compared as bits: minus zero must come out as minus zero.
    assert torch.equal(result.to(torch.bfloat16).view(torch.int16), vectors[key].view(torch.int16))
