"""An engine's numbers for Prometheus, under the names the field uses (vLLM's, with our prefix).

The collector reads `Engine.stats()` when it is scraped and keeps nothing itself, so metrics cost nothing
between scrapes and agree with what the application sees. It needs prometheus-client (`stepahead[metrics]`).

    prometheus_client.REGISTRY.register(prometheus_collector(engine))

A scrape from another thread than the loop's reads integers that the loop is writing: each is whole, and two
of them may be a step apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from .errors import StepaheadError
from .timings import Histogram
from .types import Stats

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

PREFIX = "stepahead_"

GAUGES: dict[str, tuple[str, str]] = {
    "num_requests_running": ("running", "Sequences that hold a slot."),
    "num_requests_waiting": ("waiting", "Sequences that wait for admission."),
    "kv_cache_blocks": ("kv_blocks", "Cache blocks."),
    "kv_cache_blocks_free": ("kv_blocks_free", "Cache blocks that no running sequence uses."),
    "kv_cache_blocks_cached": ("kv_blocks_cached", "Unused blocks whose content a prefix hit can use."),
    "state_snapshots": ("snapshots", "Window states that can be kept."),
    "state_snapshots_free": ("snapshots_free", "Window states not kept."),
}
COUNTERS: dict[str, tuple[str, str]] = {
    "engine_steps": ("steps", "Steps of the device."),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of requests."),
    "generation_tokens": ("output_tokens", "Tokens generated."),
    "prefix_cache_queries": ("prompt_tokens", "Prompt tokens looked up in the prefix cache."),
    "prefix_cache_hits": ("cached_tokens", "Prompt tokens found in the prefix cache."),
    "spec_decode_num_draft_tokens": ("drafted_tokens", "Draft tokens verified."),
    "spec_decode_num_accepted_tokens": ("accepted_tokens", "Draft tokens accepted."),
    "num_preemptions": ("preemptions", "Sequences preempted."),
    "coalesced_deltas": ("coalesced_deltas", "Deltas merged with one that was not read yet."),
}
SPECULATION: dict[str, tuple[str, str]] = {
    "spec_decode_num_drafts_made": ("drafted", "Draft tokens made, verified or not."),
    "spec_decode_rows_saved": ("rows_saved", "Rows that verifying every draft would have added."),
    "spec_decode_steps_without_drafts": ("steps_without_drafts", "Steps in which drafting rested."),
}
SPECULATION_GAUGES: dict[str, tuple[str, str]] = {
    "spec_decode_mean_accept_length": ("mean_accept_length", "Tokens per step of a sequence."),
    "spec_decode_saved_estimated_seconds": (
        "seconds_saved_estimated",
        "Device time saved against decoding without drafts, as expected when steps were planned.",
    ),
    "spec_decode_saved_measured_seconds": (
        "seconds_saved_measured",
        "Device time saved against decoding without drafts, by tokens and times observed.",
    ),
    "spec_decode_trust": ("trust", "Accepted drafts by those that confidences promised."),
}
POSITIONS: dict[str, tuple[str, str]] = {
    "spec_decode_num_draft_tokens_per_pos": ("verified_by_position", "Draft tokens verified, by place."),
    "spec_decode_num_accepted_tokens_per_pos": ("accepted_by_position", "Draft tokens accepted, by place."),
}
OUTCOMES = ("finished", "aborted", "failed")
HISTOGRAMS: dict[str, tuple[str, str]] = {
    "time_to_first_token_seconds": ("first_token", "From arrival to the first token."),
    "inter_token_latency_seconds": ("inter_token", "Between the steps that gave a sequence tokens."),
    "e2e_request_latency_seconds": ("end_to_end", "From arrival to the end."),
    "request_queue_time_seconds": ("queue", "From arrival to admission."),
    "step_time_seconds": ("step", "A step on the device."),
    "exposed_host_time_seconds": ("exposed_host", "Device idle before a step although there was work."),
    "event_loop_lag_seconds": ("loop_lag", "How late the event loop ran what was due."),
}


class HasStats(Protocol):
    """What a collector asks: an `Engine`."""

    def stats(self) -> Stats: ...


class MissingPrometheusError(StepaheadError):
    """Metrics need prometheus-client, which is an extra."""

    def __init__(self) -> None:
        super().__init__("Prometheus metrics need prometheus-client: pip install 'stepahead[metrics]'")


def prometheus_collector(engine: HasStats, labels: dict[str, str] | None = None) -> Collector:
    """A collector for `prometheus_client`'s registries; `labels` are put on every metric.

    Raises `MissingPrometheusError`.
    """
    try:
        from prometheus_client import registry
    except ImportError as error:
        raise MissingPrometheusError from error

    class EngineCollector(registry.Collector):
        def collect(self) -> Iterable[Metric]:
            return metrics(engine.stats(), labels or {})

        def describe(self) -> Iterable[Metric]:
            """Registering must not ask an engine that is not open yet."""
            return ()

    return EngineCollector()


def metrics(stats: Stats, labels: dict[str, str]) -> Iterator[Metric]:
    """The families of one moment. Needs prometheus-client."""
    from prometheus_client import metrics_core as core

    names, values = list(labels), list(labels.values())

    def single(kind: Any, name: str, help_text: str, value: float) -> Metric:
        family = kind(PREFIX + name, help_text, labels=names)
        family.add_metric(values, value)
        made: Metric = family
        return made

    for name, (field, text) in GAUGES.items():
        yield single(core.GaugeMetricFamily, name, text, getattr(stats, field))
    used = 1 - stats.kv_blocks_free / stats.kv_blocks if stats.kv_blocks else 0.0
    yield single(core.GaugeMetricFamily, "kv_cache_usage_perc", "Share of cache blocks in use, 0 to 1.", used)
    for name, (field, text) in COUNTERS.items():
        yield single(core.CounterMetricFamily, name, text, getattr(stats, field))
    speculation = stats.speculation
    for name, (field, text) in SPECULATION.items():
        yield single(core.CounterMetricFamily, name, text, getattr(speculation, field))
    for name, (field, text) in SPECULATION_GAUGES.items():
        yield single(core.GaugeMetricFamily, name, text, getattr(speculation, field))
    for name, (field, text) in POSITIONS.items():
        places = core.CounterMetricFamily(PREFIX + name, text, labels=[*names, "position"])
        for place, count in enumerate(getattr(speculation, field)):
            places.add_metric([*values, str(place)], count)
        yield places
    requests = core.CounterMetricFamily(
        PREFIX + "request", "Requests that ended.", labels=[*names, "outcome"]
    )
    for outcome in OUTCOMES:
        requests.add_metric([*values, outcome], getattr(stats, outcome))
    yield requests
    depths = core.GaugeMetricFamily(PREFIX + "mailbox_depth", "Messages waiting.", labels=[*names, "actor"])
    for actor, mailbox in stats.mailboxes.items():
        depths.add_metric([*values, actor], mailbox.depth)
    yield depths
    for name, (field, text) in HISTOGRAMS.items():
        observed: Histogram = getattr(stats.timings, field)
        family = core.HistogramMetricFamily(PREFIX + name, text, labels=names)
        buckets = [(f"{bound:g}", count) for bound, count in observed.cumulative()]
        family.add_metric(values, [*buckets, ("+Inf", observed.count)], observed.total)
        yield family
