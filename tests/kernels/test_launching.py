"""Counters that programs of a launch share."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from stepahead.devices.kernels.triton import launching


@pytest.fixture(autouse=True)
def _none_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_COUNTERS", {})


def on_stream(monkeypatch: pytest.MonkeyPatch, stream: int, *, capturing: bool = False) -> None:
    monkeypatch.setattr(launching, "_stream", lambda device: stream)
    monkeypatch.setattr(launching, "_capturing", lambda device: capturing)


def test_every_stream_counts_for_itself(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    first = launching.counters("some", device, 3)
    assert first.tolist() == [0, 0, 0]
    assert launching.counters("some", device, 3) is first
    assert launching.counters("others", device, 3) is not first
    on_stream(monkeypatch, 7)
    second = launching.counters("some", device, 3)
    assert second is not first
    assert launching.counters("some", device, 3) is second
    on_stream(monkeypatch, 7, capturing=True)
    assert launching.counters("some", device, 3) is second


def test_a_capture_makes_no_counters(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    on_stream(monkeypatch, 7, capturing=True)
    with pytest.raises(RuntimeError, match="some: captured before it has run once"):
        launching.counters("some", device, 3)
    on_stream(monkeypatch, 3)
    newest = launching.counters("some", device, 3)
    launching.counters("others", device, 3)
    on_stream(monkeypatch, 7, capturing=True)
    assert launching.counters("some", device, 3) is newest


def test_the_stream_is_the_one_launched_on(device: torch.device) -> None:
    if device.type != "cuda":
        assert launching._stream(device) == 0
        return
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert launching._stream(device) == stream.cuda_stream
