"""Running out of device memory, wherever it happens, has a type and leaves an engine that is closed for good.

The built-in model on a device whose allocations, captures and steps fail on demand.
"""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from stepahead import Engine, EngineConfig, EngineFailedError, NoDeviceMemoryError, SamplingParams
from stepahead.devices.device import OutOfMemoryError
from stepahead.engine.model.v41.model import Model
from stepahead.engine.types import HealthState
from tests.device.replaying import ReplayingDevice

SMALL = EngineConfig(
    max_sequences=2, max_step_rows=64, max_context=256, kv_blocks=8, draft_tokens=0, graph_sequences=1
)


def failing_at(label: str) -> ReplayingDevice:
    return ReplayingDevice(fails=lambda asked: asked.startswith(label))


@pytest.mark.parametrize(
    "where", ["loading", "the forward of 1 rows", "the sampling of 1 sequences"], ids=str
)
async def test_no_room_while_opening_closes_the_device(where: str) -> None:
    device = failing_at(where)
    with pytest.raises(NoDeviceMemoryError, match="no room") as caught:
        await Engine.open(config=SMALL, device=device)
    assert isinstance(caught.value.__cause__, OutOfMemoryError)
    assert device.closes == 1
    async with Engine.open(config=SMALL, device=ReplayingDevice()) as engine:  # nothing is left in the way
        assert len((await engine.generate([5, 6], SamplingParams(max_tokens=3))).token_ids) <= 3


async def test_an_error_that_somebody_keeps_keeps_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its frames would: those of the error below it, too."""
    models: list[weakref.ref[Model]] = []

    def no_room(model: Model, shape: object) -> None:
        models.append(weakref.ref(model))
        raise MemoryError("scripted")

    monkeypatch.setattr(Model, "new_caches", no_room)
    with pytest.raises(NoDeviceMemoryError) as kept:
        await Engine.open(config=SMALL, device=ReplayingDevice())
    gc.collect()
    assert isinstance(kept.value.__cause__, OutOfMemoryError)
    assert isinstance(kept.value.__cause__.__cause__, MemoryError)
    assert [model() for model in models] == [None]


@pytest.mark.parametrize("label", ["fixups:0", "forward:4", "sample:3"])
async def test_no_room_in_a_step_ends_every_stream_with_one_error(label: str) -> None:
    device = failing_at(label)
    engine = await Engine.open(config=SMALL, device=device)
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    failures = await asyncio.gather(
        *(engine.generate([5, 6, number], params) for number in range(3)), return_exceptions=True
    )
    for failure in failures:
        assert isinstance(failure, EngineFailedError)
        assert isinstance(failure.__cause__, OutOfMemoryError)
    assert engine.health().state is HealthState.FAILED
    assert device.closes == 1
    with pytest.raises(EngineFailedError):
        await engine.generate([5, 6], params)
    await engine.close()
    assert device.closes == 1


async def test_captures_are_counted_where_operators_look() -> None:
    device = ReplayingDevice()
    async with Engine.open(config=SMALL, device=device) as engine:
        report = engine.stats().graphs
        assert report is not None
        assert report.graphs == len(device.captured) == 3
        assert report.largest_rows == 1
        await engine.generate([5, 6], SamplingParams(max_tokens=9, ignore_eos=True))
        assert device.replays >= 2 * 8
    eager = EngineConfig(max_sequences=1, max_step_rows=64, max_context=256, kv_blocks=8, graph_sequences=0)
    async with Engine.open(config=eager, device=ReplayingDevice()) as engine:
        assert engine.stats().graphs is None
