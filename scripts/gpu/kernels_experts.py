"""The feed-forward family: routing, experts and products with quantized weights."""

from __future__ import annotations

import functools
import multiprocessing
import time

import torch
from measuring import DEVICE, Row, floor, microseconds, relative_error
from torch import Tensor

from stepahead.devices.kernels.quantized import QuantizedWeight, Weight, WeightFormat, plain
from stepahead.devices.kernels.reference import experts as reference
from stepahead.devices.kernels.triton import experts, routing

REAL = {"dim": 5120, "inner": 2304}
LIMIT, SCALING = 10.0, 1.5
MXFP4, FP8 = WeightFormat.MXFP4, WeightFormat.FP8_BLOCK
BF16 = torch.bfloat16


def random_weight(form: WeightFormat | None, *shape: int, dtype: torch.dtype = BF16) -> Weight:
    """Finite random codes of unit-variance products; generated on the card."""
    *stack, rows, columns = shape
    if form is None:
        return (torch.randn(*shape, device=DEVICE) * columns**-0.5).to(dtype)
    spread = 3.0 if form is MXFP4 else 100.0
    middle = 127 - round(torch.tensor(spread * columns**0.5).log2().item())
    if form is MXFP4:
        payload = torch.randint(0, 256, (*stack, rows, columns // 2), dtype=torch.uint8, device=DEVICE)
        scale_rows = rows
    else:
        payload = torch.randint(0, 256, (*stack, rows, columns), dtype=torch.uint8, device=DEVICE)
        payload.masked_fill_((payload & 0x7F) == 0x7F, 0x7E)  # NaN codes
        payload, scale_rows = payload.view(torch.float8_e4m3fn), rows // 32
    scales = torch.randint(
        middle - 1, middle + 2, (*stack, scale_rows, columns // 32), dtype=torch.uint8, device=DEVICE
    )
    return QuantizedWeight(payload, scales, form)


def random_experts(
    count: int, dim: int, inner: int, routed: WeightFormat | None, shared: WeightFormat | None,
    dtype: torch.dtype = BF16,
) -> reference.Experts:  # fmt: skip
    make = functools.partial(random_weight, dtype=dtype)
    return reference.Experts(
        make(routed, count, 2 * inner, dim),
        make(routed, count, dim, inner),
        make(shared, 2 * inner, dim),
        make(shared, dim, inner),
    )


def weight_bytes(weight: Weight) -> int:
    return weight.nbytes if isinstance(weight, QuantizedWeight) else weight.numel() * weight.element_size()


class Layer:
    """One sublayer with random weights."""

    def __init__(
        self, count: int, top_k: int, dim: int, inner: int, routed: WeightFormat | None,
        shared: WeightFormat | None, dtype: torch.dtype = BF16,
    ) -> None:  # fmt: skip
        self.count, self.top_k, self.dim, self.inner, self.dtype = count, top_k, dim, inner, dtype
        self.experts = random_experts(count, dim, inner, routed, shared, dtype)
        self.gate = (torch.randn(count, dim, device=DEVICE) * dim**-0.5).to(dtype)
        self.bias = torch.randn(count, device=DEVICE) * 0.02

    def inputs(self, rows: int) -> Tensor:
        return torch.randn(rows, self.dim, device=DEVICE).to(self.dtype)

    def route(self, x: Tensor, quantized: bool = False) -> routing.TiledRouting:
        return routing.route_rows(
            x, self.gate, self.bias, self.bias, None, self.top_k, SCALING, self.experts, quantized=quantized
        )

    def mix(self, x: Tensor, chosen: reference.Routing, quantized: bool = False) -> Tensor:
        return experts.mix_experts(x, chosen, self.experts, LIMIT, quantized=quantized)

    def twin(self, x: Tensor, chosen: reference.Routing, quantized: bool = False) -> Tensor:
        """In float64 unless the level rounds, which is defined in the model's own type."""
        if quantized:
            return reference.mix_experts(x, chosen, self.experts, LIMIT, quantized=True)
        wide = reference.Experts(*(plain(w, torch.float64).double() for w in vars(self.experts).values()))
        routing64 = reference.Routing(chosen.chosen, chosen.shares.double())
        return reference.mix_experts(x.double(), routing64, wide, LIMIT, quantized=False)

    def moved(self, chosen: Tensor) -> int:
        """Bytes of the distinct chosen experts and the shared one, each read once, and of the rows."""
        distinct = int(torch.unique(chosen).numel())
        routed = weight_bytes(self.experts.gate_up) + weight_bytes(self.experts.down)
        shared = weight_bytes(self.experts.shared_gate_up) + weight_bytes(self.experts.shared_down)
        return (
            routed * distinct // self.count
            + shared
            + 2 * chosen.shape[0] * self.dim * self.gate.element_size()
        )

    def flops(self, rows: int) -> float:
        return 6.0 * rows * (self.top_k + 1) * self.dim * self.inner


def _correct(name: str, layer: Layer, rows: int, limit: float, quantized: bool = False) -> Row:
    x = layer.inputs(rows)
    chosen = layer.route(x, quantized)
    theirs = reference.route_rows(
        x, layer.gate, layer.bias, layer.bias, None, layer.top_k, SCALING, layer.experts, quantized=quantized
    )
    dense = torch.zeros(2, rows, layer.count, device=DEVICE)
    dense[0].scatter_(1, chosen.chosen, chosen.shares)
    dense[1].scatter_(1, theirs.chosen, theirs.shares)
    routing_error = relative_error(dense[0], dense[1])
    error = relative_error(layer.mix(x, chosen, quantized), layer.twin(x, chosen, quantized))
    alone = layer.mix(x[:1], layer.route(x[:1], quantized), quantized)
    same = torch.equal(alone, layer.mix(x, chosen, quantized)[:1])
    print(f"{name} rows {rows}: routing {routing_error:.1e}, experts {error:.1e}, row alone bitwise {same}")
    shape = f"{rows} rows, {layer.count} experts"
    # Promised in float32: there a row that depends on its neighbours fails like a wrong one.
    worst = max(error, routing_error) if same or layer.dtype != torch.float32 else float("nan")
    return Row(name, shape, layer.dtype, worst, limit, 0.0, 0.0)


def _timed(name: str, layer: Layer, rows: int) -> list[Row]:
    inputs = [layer.inputs(rows) for _ in range(4 if rows <= 256 else 1)]
    chosen = [layer.route(x) for x in inputs]
    graph = rows <= 256
    shape, nan = f"{rows} rows, {layer.count} experts", 0.0
    route_us = microseconds([functools.partial(layer.route, x) for x in inputs], graph=graph)
    calls = [functools.partial(layer.mix, x, c) for x, c in zip(inputs, chosen, strict=True)]
    mix_us = microseconds(calls, graph=graph)
    bytes_moved = sum(layer.moved(c.chosen) for c in chosen) / len(chosen)
    gate_bytes = layer.gate.numel() * layer.gate.element_size()
    return [
        Row(f"{name} route", shape, layer.dtype, nan, 1.0, route_us, floor(gate_bytes)),
        Row(f"{name} experts", shape, layer.dtype, nan, 1.0, mix_us,
            floor(bytes_moved, layer.flops(rows), layer.dtype)),
    ]  # fmt: skip


Case = tuple[str, int, bool]
"""Which layer, how many rows, and whether activations are rounded."""

CHECKED: list[Case] = [
    ("few", 1, False), ("few", 33, False), ("few", 130, False), ("few", 33, True),
    ("tiny", 1, False), ("tiny", 64, False), ("tiny", 300, False),
]  # fmt: skip
TIMED: list[Case] = [("real", 1, False), ("real", 8, False), ("real", 64, False), ("real", 256, False)]
LIMITS = {"few": 1e-2, "tiny": 1e-5}


def _layer(name: str, small: bool, count: int = 384) -> Layer:
    if name == "tiny":
        return Layer(16, 2, 256, 64, None, None, torch.float32)
    sizes = {"dim": 256, "inner": 64} if small else REAL
    count, top_k = (12, 3) if name == "few" else (count, 6)
    return Layer(count, top_k, **sizes, routed=MXFP4, shared=FP8)


def _compile(case: Case, small: bool) -> None:
    """Fill the compiler's cache with what a case needs: in a process of its own, several at a time."""
    name, rows, quantized = case
    with torch.inference_mode():
        # Programs do not depend on the number of experts, but their height does, through the rows of each.
        layer = _layer(name, small, 8)
        if name == "real":
            height = routing.tile_height(rows * 6, 384, BF16)
            routing.tile_height = lambda picks, count, dtype: height
        x = layer.inputs(rows)
        layer.mix(x, layer.route(x, quantized), quantized)
        torch.cuda.synchronize()


def run(small: bool) -> list[Row]:
    cases = CHECKED if small else CHECKED + TIMED
    begin = time.perf_counter()
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_compile, args=(case, small)) for case in cases]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"compiled {len(cases)} cases in {time.perf_counter() - begin:.1f} s", flush=True)
    layers = {name: _layer(name, small) for name in ("few", "tiny")}
    rows = [
        _correct(name, layers[name], count, 3e-2 if quantized else LIMITS[name], quantized)
        for name, count, quantized in CHECKED
    ]
    if small:
        return rows
    rows += _timed("built-in", layers["tiny"], 64)
    layers.clear()
    real = _layer("real", small)
    for name, count, _ in TIMED:
        rows += _timed(name, real, count)
    return rows
