"""Metrics and events of engines that run: the field's names, the engine's numbers, silence by default."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from stepahead import Engine, EngineFailedError, SamplingParams, Stats, prometheus_collector
from stepahead.devices.clock import run_virtual
from stepahead.engine import events
from stepahead.engine.metrics import (
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    POSITIONS,
    SPECULATION,
    SPECULATION_GAUGES,
    MissingPrometheusError,
)
from tests.actors.hashed_engine import DRAFTING, open_hashed, prompt_of

FORWARD, SAMPLE = 0.010, 0.002


def _latency(label: str) -> float:
    return FORWARD if label.startswith("forward") else SAMPLE


async def _work(engine: Engine) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=20, seed=1, ignore_eos=True)
    await asyncio.gather(*(engine.generate(prompt_of(20 + n, n), params) for n in range(4)))


def _scraped(engine: Engine) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(prometheus_collector(engine, {"model": "hashed"}))
    text = generate_latest(registry).decode()
    samples: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["model"] == "hashed"
            rest = {key: value for key, value in sample.labels.items() if key != "model"}
            samples[sample.name + "".join(f"/{value}" for value in rest.values())] = sample.value
    return samples


def test_what_is_scraped_is_what_stats_say() -> None:
    async def run() -> tuple[Stats, dict[str, float]]:
        async with open_hashed(DRAFTING, latency=_latency) as engine:
            await _work(engine)
            return engine.stats(), _scraped(engine)

    stats, scraped = run_virtual(run())
    for name, (field, _) in GAUGES.items():
        assert scraped[f"stepahead_{name}"] == getattr(stats, field)
    for name, (field, _) in COUNTERS.items():
        assert scraped[f"stepahead_{name}_total"] == getattr(stats, field)
    assert scraped["stepahead_request_total/finished"] == 4
    assert scraped["stepahead_generation_tokens_total"] == 80
    assert scraped["stepahead_spec_decode_num_accepted_tokens_total"] > 0
    speculation = stats.speculation
    assert speculation.mean_accept_length == pytest.approx(
        1 + speculation.accepted / speculation.decode_steps
    )
    for name, (field, _) in (SPECULATION | SPECULATION_GAUGES).items():
        suffix = "_total" if name in SPECULATION else ""
        assert scraped[f"stepahead_{name}{suffix}"] == getattr(speculation, field)
    for name, (field, _) in POSITIONS.items():
        counts = getattr(speculation, field)
        assert sum(counts) > 0
        for place, count in enumerate(counts):
            assert scraped[f"stepahead_{name}_total/{place}"] == count
    assert scraped["stepahead_mailbox_depth/scheduler"] == 0
    for name, (field, _) in HISTOGRAMS.items():
        histogram = getattr(stats.timings, field)
        assert scraped[f"stepahead_{name}_count"] == histogram.count
        assert scraped[f"stepahead_{name}_bucket/+Inf"] == histogram.count
        assert scraped[f"stepahead_{name}_sum"] == pytest.approx(histogram.total)


def test_timings_are_those_of_the_scripted_device() -> None:
    async def run() -> Stats:
        async with open_hashed(DRAFTING, latency=_latency) as engine:
            await asyncio.sleep(1.0)  # a clock at 0 is taken for one that is off
            await _work(engine)
            await asyncio.sleep(5.0)
            await _work(engine)
            return engine.stats()

    stats = run_virtual(run())
    timings = stats.timings
    lap = FORWARD + SAMPLE
    assert timings.step.count == stats.steps
    assert timings.step.total == pytest.approx(lap * stats.steps)
    assert timings.exposed_host.total == pytest.approx(0.0)
    assert timings.first_token.count == timings.end_to_end.count == timings.queue.count == 8
    assert timings.first_token.total == pytest.approx(8 * 2 * lap)  # a prompt ends behind its last block
    assert timings.inter_token.quantile(0.99) == 0.025
    assert timings.end_to_end.total < 8 * 0.5
    assert timings.loop_lag.total == 0.0


def test_without_overlap_the_host_is_exposed_only_by_what_the_host_takes() -> None:
    async def run() -> Stats:
        async with open_hashed(latency=_latency, overlap=False) as engine:
            await _work(engine)
            return engine.stats()

    timings = run_virtual(run()).timings
    assert timings.exposed_host.count > 10
    assert timings.exposed_host.total == 0.0  # in virtual time the host takes none


def test_without_the_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingPrometheusError, match=r"stepahead\[metrics\]"):
        prometheus_collector(None)  # type: ignore[arg-type]


@pytest.fixture
def silent_root() -> Iterator[logging.Logger]:
    """A program that has not configured logging, which pytest has."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield root
    root.handlers[:], root.level = handlers, level


async def test_events_are_silent_by_default(
    silent_root: logging.Logger, capfd: pytest.CaptureFixture[str]
) -> None:
    async with open_hashed() as engine:
        await _work(engine)
    events.error("engine failed", actor="nobody")
    assert capfd.readouterr() == ("", "")


async def test_an_application_that_listens_hears_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, events.NAME)
    with pytest.raises(EngineFailedError):
        async with open_hashed(
            fault=lambda label: ValueError("x") if label == "forward:2" else None
        ) as engine:
            await _work(engine)
    told = {record.message: record for record in caplog.records if record.name == events.NAME}
    assert list(told) == ["engine opened", "engine failed", "engine closed"]
    assert told["engine opened"].overlap is True  # type: ignore[attr-defined]
    assert told["engine failed"].levelno == logging.ERROR
    assert "forward:2" in told["engine failed"].cause  # type: ignore[attr-defined]
