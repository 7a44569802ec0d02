"""Products with FP8 weights and n-gram memory in FP8, at the published sizes; see check_kernels.py.

Errors are against the expanded weights in float64, and for memory, which only gathers, bit for bit. The twin
that is timed expands the whole weight and multiplies by the library.
"""

from __future__ import annotations

from functools import partial

import torch
from kernels_experts import FP8, random_weight
from measuring import DEVICE, Row, measured, moved, relative_error

from stepahead.devices.kernels.operations import REFERENCE
from stepahead.devices.kernels.quantized import QuantizedWeight
from stepahead.devices.kernels.quantized_rows import QuantizedRows
from stepahead.devices.kernels.triton import engram, products

BF16, LIMIT = torch.bfloat16, 4e-3
SIZES = ((5120, 1792, 1), (1280, 32_768, 1), (4096, 1024, 8), (8192, 5120, 1))
"""Columns, weight rows, groups: into the latents, queries, and the two halves of the way out of attention."""
MULTIPLIERS = (76632096046245, 4839876093313, 35959672319349, 73987337458391)
PLACES, DIM, TABLE_ROWS = 24, 256, 160_000


def product_row(rows: int, columns: int, out: int, groups: int, small: bool) -> Row:
    shape = (groups, out, columns) if groups > 1 else (out, columns)
    weight = random_weight(FP8, *shape)
    assert isinstance(weight, QuantizedWeight)
    x = torch.randn(rows, groups * columns, device=DEVICE).to(BF16)
    name = "linear" if groups == 1 else "grouped_linear"
    ours, twin = (partial(getattr(where, name), x, weight) for where in (products, REFERENCE))
    wide = weight.dequantize(torch.float64)
    each = x.double().view(rows, groups, columns)
    expected = torch.einsum("rgc,goc->rgo", each, wide.view(groups, out, columns)).flatten(1)
    return measured(
        f"{name}, FP8", f"{rows}x{groups}x{columns} to {out}", relative_error(ours(), expected), LIMIT,
        [ours], dtype=BF16, moved_bytes=weight.nbytes + moved(x) + 2 * rows * groups * out,
        flops=2 * rows * columns * out * groups, twin=twin, small=small,
    )  # fmt: skip


def recall_row(rows: int, small: bool) -> Row:
    codes = torch.randint(0, 127, (PLACES * TABLE_ROWS, DIM), dtype=torch.uint8, device=DEVICE)
    scales = torch.randint(120, 130, (PLACES * TABLE_ROWS, DIM // 32), dtype=torch.uint8, device=DEVICE)
    table = QuantizedRows(codes.view(torch.float8_e4m3fn), scales)
    # Three lengths of n-grams, eight heads each; a head's rows follow the one's before.
    primes = torch.full((3, PLACES // 3), TABLE_ROWS - 1, device=DEVICE)
    offsets = torch.arange(PLACES, device=DEVICE).view(3, -1) * TABLE_ROWS
    multipliers = torch.tensor(MULTIPLIERS, device=DEVICE)
    ngrams = [torch.randint(0, 99_092, (rows, 4), device=DEVICE) for _ in range(4)]
    hashing = (multipliers, primes, offsets, table, BF16)
    ours = [partial(engram.recall, each, *hashing) for each in ngrams]
    twin = partial(REFERENCE.recall, ngrams[0], *hashing)
    found = ours[0]()
    return measured(
        "recall, FP8", f"{rows} x {PLACES} x {DIM}", float(not torch.equal(found, twin())), 0.0, ours,
        dtype=BF16, moved_bytes=moved(found) + found.numel() * (1 + 1 / 32), twin=twin, small=small,
    )  # fmt: skip


def run(small: bool) -> list[Row]:
    torch.manual_seed(0)
    rows = []
    for count in (3,) if small else (1, 8, 64, 256, 4096):
        for columns, out, groups in ((256, 192, 1), (128, 64, 2)) if small else SIZES:
            rows.append(product_row(count, columns, out, groups, small))
        rows.append(recall_row(count, small))
    return rows
