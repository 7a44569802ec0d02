"""Small float32 products on the card, beside the library's; see check_kernels.py."""

from __future__ import annotations

from functools import partial

import torch
from measuring import DEVICE, Row, measured, moved, relative_error

from stepahead.devices.kernels.triton import plain_products

LIMIT = 1e-6


def product_row(name: str, rows: int, width: int, out: int, small: bool, groups: int = 1) -> Row:
    x = torch.randn(rows, groups * width, device=DEVICE)
    weight = torch.randn(groups, out, width, device=DEVICE)
    if groups > 1:
        run = partial(plain_products.grouped_linear, x, weight)
        twin = partial(torch.bmm, x.view(rows, groups, width).transpose(0, 1), weight.mT)
        expected = twin.func(*(t.double() for t in twin.args)).transpose(0, 1).flatten(1)
    else:
        run = partial(plain_products.linear, x, weight[0])
        twin = partial(torch.nn.functional.linear, x, weight[0])
        expected = x.double() @ weight[0].double().T
    error = relative_error(run(), expected)
    alone = partial(run.func, x[:1], run.args[1])()
    if not torch.equal(alone, run()[:1]):  # a row's result must not depend on how many there are
        error = float("nan")
    return measured(
        name, f"{rows}x{groups * width} to {groups * out}", error, LIMIT, [run],
        dtype=torch.float32, moved_bytes=moved(x, weight) + 4 * rows * groups * out,
        flops=2 * rows * width * out * groups, twin=twin, small=small,
    )  # fmt: skip


def run(small: bool) -> list[Row]:
    torch.manual_seed(0)
    rows = []
    for count in (3,) if small else (1, 64, 384, 2048):
        rows += [
            product_row("linear", count, 256, 192, small),
            product_row("linear", count, 128, 512, small),
            product_row("linear", count, 256, 4, small),
            product_row("grouped_linear", count, 256, 64, small, groups=2),
            product_row("head", count, 256, 4096, small),
        ]
    return rows
