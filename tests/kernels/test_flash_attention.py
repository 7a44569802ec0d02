"""Attention through a kernel over one pool: what stands around it, with a kernel of torch in its place."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from stepahead.devices.kernels.reference import attention as reference
from stepahead.devices.kernels.reference.attention import KeyIndex
from stepahead.devices.kernels.triton import flash_attention
from stepahead.devices.kernels.triton.flash_attention import FlashOperations, attend_by, flash_kernel, suits

from .comparing import assert_close
from .test_attention import places_of

ROWS, HEADS, DIM, ROTARY, SLOTS = 5, 20, 64, 16, 90


@pytest.mark.parametrize("nothing", [float("inf"), -float("inf")])
@pytest.mark.parametrize("entries", [0, 48])
def test_two_pools_are_joined_as_one(entries: int, nothing: float, device: torch.device) -> None:
    """Also where a row has keys in one pool only, or in none; of such rows the kernel returns anything."""

    def kernel(query: Tensor, pool: Tensor, places: Tensor, scale: float, /) -> tuple[Tensor, Tensor]:
        assert places.dtype == torch.int32
        assert places.is_contiguous()
        missing = (places < 0).expand(-1, query.shape[1], -1)
        keys = pool[places.clamp(min=0).flatten().long(), 0].view(query.shape[0], -1, DIM).float()
        scores = (query.float() @ keys.mT * scale).masked_fill(missing, -torch.inf)
        sums = scores.logsumexp(-1)
        out = (scores - sums.unsqueeze(-1)).exp().nan_to_num() @ keys
        empty = missing.all(-1)
        return (
            out.masked_fill(empty.unsqueeze(-1), torch.nan).to(query.dtype),
            sums.masked_fill(empty, nothing),
        )

    generator = torch.Generator().manual_seed(entries)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(torch.bfloat16).to(device)

    query, window_pool, entry_pool = random(ROWS, HEADS, DIM), random(SLOTS, DIM), random(SLOTS, DIM)
    sink = random(HEADS).float()
    angle = torch.rand(ROWS, ROTARY // 2, generator=generator) * 6.28
    turns = torch.stack((angle.cos(), angle.sin()), -1).flatten(1).to(device)
    seen = places_of(ROWS, 32, SLOTS, front=True, generator=generator).to(device)
    chosen = places_of(ROWS, max(entries, 1), SLOTS, front=False, generator=generator).to(device)
    seen[1] = chosen[2] = -1
    seen[3] = chosen[3] = -1
    window = KeyIndex.of(seen, torch.float32)
    entry = (entry_pool, KeyIndex.of(chosen, torch.float32)) if entries else (None, None)
    out = attend_by(kernel, query, turns, window_pool, window, *entry, sink, DIM**-0.5)
    twin = reference.attend(query.clone(), turns, window_pool, window, *entry, sink, DIM**-0.5)
    assert_close(out, twin, 1e-2)
    assert not out[3].any()


@pytest.mark.parametrize(
    ("rows", "heads", "dim", "window", "entries", "dtype", "rounded", "taken"),
    [
        (128, 64, 512, 128, 512, torch.bfloat16, True, True),
        (128, 128, 512, 128, None, torch.bfloat16, True, True),
        (63, 64, 512, 128, 512, torch.bfloat16, True, False),
        (128, 48, 512, 128, 512, torch.bfloat16, True, False),
        (128, 64, 256, 128, 512, torch.bfloat16, True, False),
        (128, 64, 512, 100, 512, torch.bfloat16, True, False),
        (128, 64, 512, 128, 500, torch.bfloat16, True, False),
        (128, 64, 512, 128, 512, torch.float32, True, False),
        (128, 64, 512, 128, 512, torch.bfloat16, False, False),
    ],
)
def test_what_a_library_is_asked_for(
    rows: int, heads: int, dim: int, window: int, entries: int | None, dtype: torch.dtype, rounded: bool,
    taken: bool,
) -> None:  # fmt: skip
    """Other shapes, types and levels go to the kernel of ours: the library's would refuse them, or round."""

    def index(count: int) -> KeyIndex:
        return KeyIndex.of(torch.empty(rows, count, dtype=torch.int32, device="meta"), torch.float32)

    query = torch.empty(rows, heads, dim, dtype=dtype, device="meta")
    chosen = None if entries is None else index(entries)
    assert suits(query, index(window), chosen, rounded) is taken


class _Library:
    """FlashMLA's surface."""

    def __init__(self, legacy: bool) -> None:
        self.legacy, self.asked = legacy, list[bool]()

    def has_legacy(self) -> bool:
        return self.legacy

    def flash_mla_sparse_fwd(
        self, q: Tensor, kv: Tensor, indices: Tensor, sm_scale: float, d_v: int, *, use_legacy: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.asked.append(use_legacy)
        return q, q, kv


@pytest.mark.parametrize(
    ("architecture", "legacy", "asks"),
    [((9, 0), True, True), ((9, 0), False, None), ((10, 0), False, False), ((10, 3), True, False),
     ((8, 0), True, None), ((12, 0), True, None)],
)  # fmt: skip
def test_the_kernel_of_an_architecture(
    architecture: tuple[int, int], legacy: bool, asks: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = _Library(legacy)
    monkeypatch.setattr(flash_attention, "find_spec", lambda name: name)
    monkeypatch.setattr(flash_attention, "import_module", lambda name: library)
    kernel = flash_kernel(architecture)
    assert (kernel is None) is (asks is None)
    if kernel is not None:
        some = torch.zeros(1)
        kernel(some, some, some, 1.0)
        assert library.asked == [asks]
        assert FlashOperations(kernel).name == "triton, FlashMLA"


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_a_package_that_does_not_load_is_none(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(name: str) -> None:
        raise error("undefined symbol")

    monkeypatch.setattr(flash_attention, "find_spec", lambda name: name)
    monkeypatch.setattr(flash_attention, "import_module", fail)
    assert flash_kernel((9, 0)) is None


def test_without_the_package_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "find_spec", lambda name: None)
    assert flash_kernel((9, 0)) is None
