"""The number formats element by element: codes, scales, ties, packing."""

from __future__ import annotations

import math

import pytest
import torch

from stepahead.devices.kernels.reference import quantization as q


def test_ue8m0_probe_of_a_published_weight() -> None:
    scale = q.decode_ue8m0(torch.tensor([0x73], dtype=torch.uint8))
    assert scale.item() == 2.0**-12
    assert (torch.tensor([-16.0, 144.0]) * scale).tolist() == [-0.00390625, 0.03515625]


def test_ue8m0_decodes_every_byte() -> None:
    decoded = q.decode_ue8m0(torch.arange(256, dtype=torch.uint8))
    assert decoded[:255].tolist() == [2.0 ** (byte - 127) for byte in range(255)]
    assert decoded[255].isnan()


def test_ue8m0_reads_the_torch_dtype_too() -> None:
    scales = torch.tensor([1.0, 0.25, 8.0]).to(torch.float8_e8m0fnu)
    assert q.decode_ue8m0(scales).tolist() == [1.0, 0.25, 8.0]


def test_ue8m0_encode_inverts_decode_on_normal_scales() -> None:
    scale_bytes = torch.arange(1, 255, dtype=torch.uint8)
    assert torch.equal(q.encode_ue8m0(q.decode_ue8m0(scale_bytes)), scale_bytes)


@pytest.mark.parametrize("largest", [q.E4M3_MAX, q.E2M1_MAX])
@pytest.mark.parametrize("exponent", [-60, -3, 0, 7, 60])
def test_scale_switches_exactly_behind_the_largest_element(largest: float, exponent: int) -> None:
    at = torch.tensor([largest * 2.0**exponent])
    infinity = torch.tensor([math.inf])
    above, below = torch.nextafter(at, infinity), torch.nextafter(at, -infinity)
    assert q.ue8m0_scale(at, largest).item() == 2.0**exponent
    assert q.ue8m0_scale(below, largest).item() == 2.0**exponent
    assert q.ue8m0_scale(above, largest).item() == 2.0 ** (exponent + 1)


def test_e2m1_code_values() -> None:
    values = q.decode_e2m1(torch.arange(16, dtype=torch.uint8))
    assert values.tolist() == [*q.E2M1_VALUES, *(-v for v in q.E2M1_VALUES)]
    assert torch.signbit(values[8])


def test_e2m1_encode_inverts_decode() -> None:
    codes = torch.arange(16, dtype=torch.uint8)
    assert torch.equal(q.encode_e2m1(q.decode_e2m1(codes)), codes)


def test_e2m1_ties_go_to_the_even_code() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert q.encode_e2m1(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
    infinity = torch.tensor(math.inf)
    assert q.encode_e2m1(torch.nextafter(ties, infinity)).tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert q.encode_e2m1(torch.nextafter(ties, -infinity)).tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_e2m1_saturates() -> None:
    assert q.round_to_e2m1(torch.tensor([100.0, -7.0])).tolist() == [6.0, -6.0]


def test_e4m3_rounds_ties_to_even_and_saturates() -> None:
    values = torch.tensor([17.0, 19.0, 448.0, 460.0, 1e9, -1e9, 2.0**-10, 3 * 2.0**-10])
    expected = [16.0, 20.0, 448.0, 448.0, 448.0, -448.0, 0.0, 2.0**-8]
    assert q.encode_e4m3(values).float().tolist() == expected


def test_nibble_order_puts_the_even_element_low() -> None:
    codes = torch.tensor([[1, 2, 3, 4]], dtype=torch.uint8)
    packed = q.pack_nibbles(codes)
    assert packed.tolist() == [[0x21, 0x43]]
    assert torch.equal(q.unpack_nibbles(packed), codes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("quantize", "dequantize", "round_trip"),
    [
        (q.quantize_fp8, q.dequantize_fp8, q.fp8_round_trip),
        (q.quantize_fp4_ue8m0, q.dequantize_fp4_ue8m0, q.fp4_round_trip_ue8m0),
        (q.quantize_fp4_e4m3, q.dequantize_fp4_e4m3, q.fp4_round_trip_e4m3),
    ],
)
def test_round_trip_is_quantize_then_dequantize(quantize, dequantize, round_trip, dtype) -> None:  # type: ignore[no-untyped-def]
    x = (torch.randn(5, 3, 64, generator=torch.Generator().manual_seed(1)) * 7).to(dtype)
    x[0, 0] = 0
    assert torch.equal(dequantize(*quantize(x), dtype), round_trip(x))


def test_power_of_two_round_trips_are_idempotent() -> None:
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    for round_trip in (q.fp8_round_trip, q.fp4_round_trip_ue8m0):
        once = round_trip(x)
        assert torch.equal(round_trip(once), once)


def test_a_dimension_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="40 is not a multiple of the quantization group 32"):
        q.fp8_round_trip(torch.zeros(2, 40))
