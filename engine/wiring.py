"""Who is connected to whom: every actor of one engine, made, joined and supervised.

The mailboxes form a cycle (a step goes round), so actors are made first and joined after; this is the only
place that knows all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stepahead.actors.actor import ActorFailedError, Supervisor
from stepahead.actors.cache_manager import CacheManager
from stepahead.actors.device_worker import DeviceWorker
from stepahead.actors.output import Output
from stepahead.actors.sampler import Sampler
from stepahead.actors.scheduler import Scheduler

from .backend import Backend
from .cache.core import CacheCore
from .config import EngineConfig
from .intake import Intake
from .model.runner import BatchLayout, RunnerShape
from .scheduling.cost_curve import CostModel
from .scheduling.planner import SchedulingCore
from .sizing import request_limits, scheduling_limits
from .speculation_stats import SpeculationStats, by_position
from .tracer import Tracer
from .types import Stats


class Wiring:
    """The actors of one engine, joined. Made on the loop they will run on; they run as `supervisor` runs."""

    def __init__(
        self, backend: Backend, config: EngineConfig, on_failure: Callable[[ActorFailedError], None]
    ) -> None:
        runner, capacity = backend.runner, config.mailbox_capacity
        facts, shape = runner.facts, runner.shape
        self.limits = request_limits(config, facts, shape)
        self.scheduler = Scheduler(
            SchedulingCore(scheduling_limits(config, facts, shape), _cost_model(backend, shape)),
            queue_capacity=config.queue_capacity,
            queue_policy=config.queue_policy,
            capacity=capacity,
        )
        self.cache_manager = CacheManager(CacheCore(shape, facts, config.prefix_cache), capacity=capacity)
        self.sampler = Sampler(shape, capacity=capacity)
        self.device_worker = DeviceWorker(runner, stall_seconds=config.stall_seconds, capacity=capacity)
        self.output = Output(
            backend.tokenizer,
            draft_tokens=shape.draft_tokens,
            slow_reader=config.slow_reader,
            unread_tokens=config.unread_tokens,
            capacity=capacity,
        )
        self._graphs = runner.captured
        self._connect()
        self.tracer = Tracer(backend, config, asyncio.get_running_loop())
        self.tracer.read_counters_by(self._counts)
        self.intake = Intake(
            self.limits,
            backend.tokenizer,
            config.queue_capacity,
            self.output.mailbox,
            self.scheduler.mailbox,
            self.tracer,
        )
        actors = (self.scheduler, self.cache_manager, self.sampler, self.device_worker, self.output)
        for actor in actors:
            actor.trace = self.tracer.recorder
        self.supervisor = Supervisor(actors, on_failure)

    def _connect(self) -> None:
        scheduler, output = self.scheduler.mailbox, self.output.mailbox
        device_worker, sampler = self.device_worker.mailbox, self.sampler.mailbox
        self.scheduler.connect(self.cache_manager.mailbox, device_worker, sampler, output)
        self.sampler.connect(device_worker, scheduler)
        self.device_worker.connect(sampler)
        self.output.connect(scheduler, self._next_step_waits)

    def _next_step_waits(self) -> bool:
        """Whether anybody through whose hands the next step goes has a message; it is looked for, too."""
        return self.device_worker.look() or any(
            (
                len(self.sampler.mailbox),
                len(self.device_worker.mailbox),
                len(self.scheduler.mailbox),
                len(self.cache_manager.mailbox),
            )
        )

    def _counts(self, layout: BatchLayout) -> tuple[tuple[int, ...], ...]:
        """For the tracer, as `vocabulary.COUNTERS` groups them."""
        core, decodes = self.scheduler.core, layout.decode_count
        counts = core.counts()
        verified = int(layout.row_starts[decodes]) if decodes < layout.slots.size else layout.rows
        return (
            (counts.running, counts.waiting + self.scheduler.outside.sequences),
            (core.uncommitted,),
            (verified, layout.rows - verified),
            (self.cache_manager.core.free,),
            (
                len(self.scheduler.mailbox),
                len(self.cache_manager.mailbox),
                len(self.sampler.mailbox),
                len(self.device_worker.mailbox),
                len(self.output.mailbox),
            ),
        )

    def _speculation(self) -> SpeculationStats:
        core, totals = self.scheduler.core, self.output.totals
        chosen, steps = core.speculation(), sum(totals.verify_lengths)
        return SpeculationStats(
            decode_steps=steps,
            drafted=chosen.drafted,
            verified=totals.drafted_tokens,
            accepted=totals.accepted_tokens,
            verified_by_position=by_position(totals.verify_lengths),
            accepted_by_position=by_position(totals.accept_lengths),
            rows_saved=steps * core.limits.draft_tokens - totals.drafted_tokens,
            steps_without_drafts=chosen.steps_without_drafts,
            seconds_saved_estimated=chosen.seconds_saved_estimated,
            seconds_saved_measured=chosen.seconds_saved_measured,
            trust=chosen.trust,
        )

    def stats(self) -> Stats:
        """A consistent picture: all actors run on this loop, so none is in the middle of anything."""
        counts, totals = self.scheduler.core.counts(), self.output.totals
        cache = self.cache_manager.core.statistics()
        return Stats(
            steps=totals.steps,
            running=counts.running,
            waiting=counts.waiting + self.scheduler.outside.sequences,
            kv_blocks=cache.blocks,
            kv_blocks_free=cache.free,
            kv_blocks_cached=cache.cached,
            snapshots=cache.snapshots,
            snapshots_free=cache.snapshots_free,
            prompt_tokens=totals.prompt_tokens,
            cached_tokens=totals.cached_tokens,
            output_tokens=totals.output_tokens,
            drafted_tokens=totals.drafted_tokens,
            accepted_tokens=totals.accepted_tokens,
            speculation=self._speculation(),
            finished=totals.finished,
            aborted=totals.aborted,
            failed=totals.failed,
            preemptions=counts.preemptions,
            coalesced_deltas=totals.coalesced_deltas,
            mailboxes=self.supervisor.statistics(),
            timings=self.tracer.recorder.measurements.timings(),
            graphs=self._graphs,
        )


def _cost_model(backend: Backend, shape: RunnerShape) -> CostModel | None:
    return None if backend.costs is None else CostModel(backend.costs, shape.max_rows)
