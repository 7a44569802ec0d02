"""The index of a step in one launch, and the kernels that store what it indexes, against their twins."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from stepahead.devices.kernels.reference import dealing as dealing_reference
from stepahead.devices.kernels.reference import decode_rows as decode_rows_reference
from stepahead.devices.kernels.reference import latents as latents_reference
from stepahead.devices.kernels.reference import quantization
from stepahead.devices.kernels.reference import step_index as reference
from stepahead.devices.kernels.reference.decode_rows import SlotTables
from stepahead.devices.kernels.reference.quantization import Format
from stepahead.devices.kernels.reference.rows import RingIndex, Rows, lay_rows, uniform_tiles
from stepahead.devices.kernels.reference.step_index import StepIndex, StepShape, StepTables
from stepahead.devices.kernels.triton import dealing, decode_rows, latents, rounding, step_index

from .comparing import assert_close

SLOTS = 5
ROTARY = 8


def turns_table(positions: int, seed: int) -> Tensor:
    angle = torch.rand(positions, ROTARY // 2, generator=torch.Generator().manual_seed(seed)) * 6.28
    return torch.stack((angle.cos(), angle.sin()), -1).flatten(1)


def step_shape(device: torch.device, ratios: tuple[int, ...] = (1, 2)) -> StepShape:
    return StepShape(
        state_slots=SLOTS,
        window=12,
        window_ring=18,
        group_rings={2: 7} if 2 in ratios else {},
        ratios=ratios,
        window_turns=turns_table(700, 1).to(device),
        compressed_turns=turns_table(700, 2).to(device),
    )


def step(first: Sequence[int], lengths: Sequence[int], device: torch.device) -> tuple[Rows, StepTables]:
    """Sequences in slots 1, 2, ... (0 for the last), with tables of their own and some floors."""
    count = len(first)
    tensors = [torch.tensor(list(x), device=device) for x in (first, lengths)]
    rows = lay_rows(tensors[0], tensors[1], sum(lengths), uniform_tiles(count, max(lengths), device))
    slot = torch.arange(1, count + 1, device=device) % count
    table = torch.arange(count * 6, device=device).view(count, 6)
    floor = torch.tensor([0, 3, 50][:count], device=device)
    return rows, StepTables(slot, table[:, :5], floor, torch.tensor([0, 2, 1][:count], device=device))


def assert_same_ring(ours: RingIndex, theirs: RingIndex) -> None:
    assert ours.staging == theirs.staging
    assert ours.store_first == theirs.store_first
    assert torch.equal(ours.keys.places.long(), theirs.keys.places)
    assert torch.equal(ours.store, theirs.store)


def assert_same_index(ours: StepIndex, theirs: StepIndex) -> None:
    assert_same_ring(ours.window, theirs.window)
    assert ours.groups.keys() == theirs.groups.keys()
    assert ours.entries.keys() == theirs.entries.keys()
    for ratio, group in theirs.groups.items():
        assert_same_ring(ours.groups[ratio], group)
    for ratio, entries in theirs.entries.items():
        assert ours.entries[ratio].per_block == entries.per_block
        for name in ("visible", "position", "store"):
            assert torch.equal(getattr(ours.entries[ratio], name), getattr(entries, name)), (ratio, name)
        assert torch.equal(ours.entry_turns[ratio], theirs.entry_turns[ratio])
    assert ours.turns.keys() == theirs.turns.keys()
    for ratio, turns in theirs.turns.items():
        assert torch.equal(ours.turns[ratio], turns)


@pytest.mark.parametrize("ratios", [(1, 2), (2,), (1,), ()])
@pytest.mark.parametrize(
    ("first", "lengths"), [((0, 5, 127), (6, 1, 3)), ((256, 0, 63), (1, 40, 2)), ((9,), (1,))]
)
def test_a_step(
    ratios: tuple[int, ...], first: Sequence[int], lengths: Sequence[int], device: torch.device
) -> None:
    shape = step_shape(device, ratios)
    rows, tables = step(first, lengths, device)
    assert_same_index(step_index.index_step(shape, rows, tables), reference.index_step(shape, rows, tables))


def test_drafts(device: torch.device) -> None:
    shape = step_shape(device)
    anchor, slot = torch.tensor([0, 11, 200, 4], device=device), torch.tensor([1, 4, 2, 0], device=device)
    ours = step_index.index_drafts(shape, anchor, slot, 5)
    theirs = reference.index_drafts(shape, anchor, slot, 5)
    assert_same_index(ours, theirs)
    for name in ("sequence", "position", "row_start", "first_position", "length"):
        assert torch.equal(getattr(ours.rows, name), getattr(theirs.rows, name))


@pytest.mark.parametrize(("lengths", "count"), [((3, 1, 6, 1, 1, 1), 11), ((1,), 1), ((2, 1), 3)])
def test_decode_rows(lengths: Sequence[int], count: int, device: torch.device) -> None:
    """Placeholders fill the sequences up; those beyond the rows have none."""
    generator = torch.Generator().manual_seed(4)
    tables = SlotTables(
        *(
            torch.randint(0, 900, shape, generator=generator).to(device)
            for shape in ((9,), (9,), (9, 5), (9, 3), (9, 12))
        )
    )
    slots = torch.tensor([4, 8, 2, 0, 0, 0][: len(lengths)], device=device)
    given = torch.tensor(list(lengths), device=device)
    tiles = uniform_tiles(len(lengths), 6, device)
    ours = decode_rows.lay_decode(tables, slots, given, count, 7, tiles)
    theirs = decode_rows_reference.lay_decode(tables, slots, given, count, 7, tiles)
    for name in ("token_ids", "block_table", "history", "zero"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    for name in ("sequence", "position", "row_start", "first_position", "length"):
        assert torch.equal(getattr(ours.rows, name), getattr(theirs.rows, name)), name


@pytest.mark.parametrize("redeal", [0, 1])
@pytest.mark.parametrize(("lengths", "dealt"), [((3, 1, 6, 1, 1, 1), 4), ((1, 1), 2), ((6, 6, 6), 3)])
def test_dealt_lengths(lengths: Sequence[int], dealt: int, redeal: int, device: torch.device) -> None:
    """Confidences with ties, some certain, some hopeless; placeholders keep their row."""
    generator = torch.Generator().manual_seed(4)
    odds = torch.randint(-60, 61, (9, 5), generator=generator).float().to(device)
    odds[2] = odds[4]
    most = torch.randint(2, 6, (9,), generator=generator).to(device)
    most[[4, 8, 2]] = 5
    slots = torch.tensor([4, 8, 2, 0, 0, 0][: len(lengths)], device=device)
    given = torch.tensor(list(lengths), device=device)
    asked = (odds, most, slots, given, torch.tensor([redeal], device=device), dealt)
    assert torch.equal(dealing.deal_lengths(*asked), dealing_reference.deal_lengths(*asked))


FORMATS: list[tuple[torch.dtype, Format]] = [
    (torch.float32, "plain"),
    (torch.bfloat16, "plain"),
    (torch.bfloat16, "fp8"),
    (torch.bfloat16, "fp4_ue8m0"),
    (torch.bfloat16, "fp4_e4m3"),
]


def awkward(rows: int, dim: int, dtype: torch.dtype, seed: int = 3) -> Tensor:
    """Values over many powers of two, zeros of both signs, and a row of nothing but zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, dim, generator=generator) * torch.randn(rows, dim, generator=generator).exp2().pow(
        6
    )
    x[:, ::7] = 0.0
    x[:, 1::11] = -0.0
    x[-1] = 0
    return x.to(dtype)


def close_but_for_ties(ours: Tensor, theirs: Tensor, form: Format) -> None:
    """Norms are summed in another order, so a value next to a tie may round the other way."""
    if form == "plain":
        assert_close(ours, theirs.double())
        return
    same = (ours == theirs).float().mean()
    assert same > 0.995, f"only {same:.3f} of the values agree"
    assert_close(ours, theirs.double(), 0.01)


@pytest.mark.parametrize(("dtype", "form"), FORMATS)
def test_stored_vectors(dtype: torch.dtype, form: Format, device: torch.device) -> None:
    rows, dim = 6, 64
    x, norm = awkward(rows, dim, dtype).to(device), (torch.rand(dim) + 0.5).to(dtype).to(device)
    turns = turns_table(rows, 5).to(device)
    places = torch.tensor([9, 2, 7, 3, 1, 8], device=device)
    pools = [torch.full((10, dim), torch.nan, dtype=dtype, device=device) for _ in range(4)]
    latents.store_key_(x, norm, 1e-20, turns, form, pools[0], places)
    latents_reference.store_key_(x, norm, 1e-20, turns, form, pools[1], places)
    ours = latents.store_entry_(x, norm, 1e-20, turns, form, pools[2], places)
    theirs = latents_reference.store_entry_(x, norm, 1e-20, turns, form, pools[3], places)
    assert torch.equal(pools[0][places], pools[2][places])
    assert_close(ours, theirs.double())
    close_but_for_ties(pools[0][places], pools[1][places], form)
    untouched = torch.tensor([0, 4, 5, 6], device=device)
    assert pools[0][untouched].isnan().all()


@pytest.mark.parametrize("lengths", [(6, 1, 3), (1, 40, 2)])
@pytest.mark.parametrize("quantized", [False, True])
def test_opened_latents(lengths: Sequence[int], quantized: bool, device: torch.device) -> None:
    dtype = torch.bfloat16 if quantized else torch.float32
    shape = step_shape(device)
    rows, tables = step((0, 5, 127), lengths, device)
    index = reference.index_step(shape, rows, tables)
    rank, dim = 96, 32
    projected = awkward(rows.count, rank + dim, dtype).to(device)
    query_norm, key_norm = ((torch.rand(n) + 0.5).to(dtype).to(device) for n in (rank, dim))
    pools = [torch.full((SLOTS * 18 + 64, dim), 9.0, dtype=dtype, device=device) for _ in range(2)]
    found = [
        module.open_latents_(
            projected, query_norm, key_norm, 1e-20, index.turns[0], pool, index.window,
            keep=True, quantized=quantized,
        )
        for module, pool in zip((latents, latents_reference), pools, strict=True)
    ]  # fmt: skip
    form: Format = "fp8" if quantized else "plain"
    close_but_for_ties(found[0], found[1], form)
    kept = slice(18, None)  # before it is scratch, where rows may write in any order
    close_but_for_ties(pools[0][kept], pools[1][kept], form)


@pytest.mark.parametrize("lengths", [(6, 1, 3), (1, 40, 2)])
def test_pooled_entries(lengths: Sequence[int], device: torch.device) -> None:
    shape = step_shape(device)
    rows, tables = step((1, 5, 126), lengths, device)
    index = reference.index_step(shape, rows, tables)
    dim = 32
    generator = torch.Generator().manual_seed(2)
    value_gate = torch.randn(rows.count, 2 * dim, generator=generator).to(device)
    norm = (torch.rand(dim) + 0.5).to(device)
    start = torch.randn(SLOTS * 7 + 64, 2 * dim, generator=generator).to(device)
    start[0] = 0
    groups = [start.clone() for _ in range(2)]
    pools = [torch.zeros(18 * 64, dim, device=device) for _ in range(2)]
    found = [
        module.store_pooled_entry_(
            value_gate, group, index.groups[2], norm, 1e-20, index.entry_turns[2], "plain", pool,
            index.entries[2].store,
        )
        for module, group, pool in zip((latents, latents_reference), groups, pools, strict=True)
    ]  # fmt: skip
    complete = index.entries[2].store >= 64
    assert complete.any()
    assert_close(found[0][complete], found[1][complete].double())
    assert_close(pools[0][64:], pools[1][64:].double())
    assert torch.equal(groups[0][7 : SLOTS * 7], groups[1][7 : SLOTS * 7])


@pytest.mark.parametrize("shape", [(3, 96), (70, 32), (2, 3, 64), (0, 64)])
def test_rounding_to_fp8(shape: tuple[int, ...], device: torch.device) -> None:
    x = awkward(max(shape[0], 1), shape[-1], torch.bfloat16)[: shape[0]]
    x = x.expand(shape).to(device) if len(shape) == 2 else x.unsqueeze(1).expand(shape).to(device)
    assert torch.equal(rounding.fp8_round_trip(x), quantization.fp8_round_trip(x))
