"""What one steady decode step costs the pure core: plan, judge the result, commit; no actors, no device.

The device is a row of constants, so every microsecond is ours. Means count the steps at which somebody
crosses a block boundary; medians show the step in which nothing happens. Time is
this thread's own, so that a busy machine disturbs it less.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections import deque
from collections.abc import Callable

import numpy as np

from stepahead.engine.cache.core import CacheCore
from stepahead.engine.cache.reservation import Grant
from stepahead.engine.model.runner import BatchLayout, ModelFacts, RunnerShape, StepResult
from stepahead.engine.sampling.commit import resolve
from stepahead.engine.sampling.table import SamplingTable
from stepahead.engine.scheduling.limits import SchedulingLimits
from stepahead.engine.scheduling.planner import Planned, SchedulingCore
from stepahead.engine.types import Request, ResolvedParams

from .report import print_table, write_json

HELP = "microseconds of plan and commit per decode step, without actors"

SEQUENCES = (1, 64, 256, 1024)
GOALS = {1: 30.0, 256: 270.0, 1024: 750.0}  # about half of a lap with messages
BLOCK, CONTEXT, PROMPT = 128, 4096, 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--steps", type=int, default=1500, metavar="N", help="measured steps (1500)")
    parser.add_argument("--drafts", type=int, default=0, metavar="D", help="drafts per sequence (0)")
    parser.add_argument("--no-overlap", action="store_true", help="plan after each commit")


def run(arguments: argparse.Namespace) -> None:
    cases = {count: _measure(count, arguments) for count in SEQUENCES}
    rows = [
        [
            str(count),
            *(f"{statistics.median(case[part]):.1f}" for part in ("plan", "judge", "commit")),
            f"{_total(case, statistics.median):.1f}",
            f"{_total(case, statistics.fmean):.1f}",
            f"{GOALS[count]:.0f}" if count in GOALS else "",
        ]
        for count, case in cases.items()
    ]
    columns = ("sequences", "plan", "judge", "commit", "median", "mean", "goal")
    print_table(f"host microseconds per decode step, {arguments.drafts} drafts", columns, rows)
    content = {
        str(count): {part: statistics.fmean(times) for part, times in case.items()}
        for count, case in cases.items()
    }
    write_json("host_core", {"drafts": arguments.drafts, "mean_microseconds": content})


def _total(case: dict[str, list[float]], average: Callable[[list[float]], float]) -> float:
    return average([sum(parts) for parts in zip(*case.values(), strict=True)])


def _measure(count: int, arguments: argparse.Namespace) -> dict[str, list[float]]:
    lap = _Lap(count, arguments.drafts, overlap=not arguments.no_overlap)
    lap.prefill()
    gc.collect()
    gc.freeze()
    times: dict[str, list[float]] = {"plan": [], "judge": [], "commit": []}
    for _ in range(arguments.steps):
        lap.step(times)
    gc.unfreeze()
    return times


class _Lap:
    """The owners of one engine's host state, called in the order of a lap."""

    def __init__(self, count: int, drafts: int, *, overlap: bool) -> None:
        width = drafts + 1
        positions = CONTEXT + 2 * width
        columns = -(-positions // BLOCK)
        shape = RunnerShape(
            sequence_slots=count,
            snapshot_slots=count,
            blocks=1 + count * columns,
            table_columns=columns,
            max_rows=max(2048, count * width),
            max_positions=positions,
            draft_tokens=drafts,
            max_stop_ids=16,
            max_logprobs=0,
        )
        facts = ModelFacts(
            vocab_size=129280,
            eos_token_ids=(1,),
            max_positions=CONTEXT,
            block_tokens=BLOCK,
            block_bytes=1,
            state_bytes=1,
            draft_tokens=drafts,
            backtracking=width,
            hit_margin=1,
        )
        limits = SchedulingLimits(
            sequence_slots=count,
            block_tokens=BLOCK,
            table_columns=columns,
            max_positions=positions,
            max_context=CONTEXT,
            max_rows=shape.max_rows,
            prefill_chunk=512,
            draft_tokens=drafts,
            backtracking=width,
            hit_margin=1,
            max_bypass=32,
            overlap=overlap,
            prefix_cache=True,
        )
        self.count, self.width = count, width
        self.core, self.cache = SchedulingCore(limits), CacheCore(shape, facts, enabled=True)
        self.table = SamplingTable(shape)
        self.flight: deque[Planned] = deque()
        self.random = np.random.default_rng(0)
        self.result_of: tuple[BatchLayout | None, StepResult | None] = (None, None)

    def prefill(self) -> None:
        for key in range(1, 1 + self.count):
            self.core.submit(_request(key, self.random), 0.0)
        while self.core.counts().waiting or not (self.flight and _decodes_all(self.flight[-1], self.count)):
            self.step({"plan": [], "judge": [], "commit": []})

    def step(self, times: dict[str, list[float]]) -> None:
        begun = time.thread_time()
        while self.core.uncommitted <= self.core.limits.depth:
            self._plan()
        planned_at = time.thread_time()
        planned = self.flight.popleft()
        result = self._result(planned)
        resulted_at = time.thread_time()
        commit = resolve(planned.plan.layout, result, self.table)
        if self.flight:
            self._prepare(self.flight[0])
        judged_at = time.thread_time()
        news = self.core.commit(commit, 0.0)
        self.cache.publish(news.publications)
        committed_at = time.thread_time()
        times["plan"].append((planned_at - begun) * 1e6)
        times["judge"].append((judged_at - resulted_at) * 1e6)
        times["commit"].append((committed_at - judged_at) * 1e6)

    def _plan(self) -> None:
        planning = self.core.plan(0.0)
        grant: Grant | None = None
        while True:
            try:
                grant = self.cache.reserve(planning.send(grant))
            except StopIteration as end:
                planned: Planned = end.value
                break
        self.cache.publish(planned.publications)
        if not self.flight:
            self._prepare(planned)
        self.flight.append(planned)

    def _prepare(self, planned: Planned) -> None:
        self.table.prepare(planned.plan.layout, planned.admitted, planned.plan.step)

    def _result(self, planned: Planned) -> StepResult:
        """Random tokens that end nothing; drafts are accepted in half of the steps."""
        layout = planned.plan.layout
        count = layout.slots.size
        tokens = self.random.integers(2, 129280, size=(count, self.width), dtype=np.int32)
        accepted = self.random.integers(0, self.width, size=count, dtype=np.int32)
        emitted = np.where(layout.samples, accepted + 1, 0).astype(np.int32)
        emitted[layout.decode_count :] = layout.samples[layout.decode_count :]
        return StepResult(
            step=planned.plan.step,
            tokens=tokens,
            emitted=emitted,
            drafted=layout.query_lengths - 1,
            positions=planned.plan.first_positions,
            finite=np.ones(count, dtype=np.bool_),
        )


def _decodes_all(planned: Planned, count: int) -> bool:
    return planned.plan.layout.decode_count == count


def _request(key: int, random: np.random.Generator) -> Request:
    """Lengths are spread over a block, so that boundaries are crossed at a steady rate."""
    length = PROMPT + int(random.integers(BLOCK))
    params = ResolvedParams(
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        seed=key,
        max_output=CONTEXT - length,
        min_output=0,
        end_ids=(1,),
        stop=(),
        include_stop=False,
        logprobs=-1,
        detokenize=True,
    )
    return Request(
        key=key,
        group=key,
        choice=0,
        leader=key,
        label=None,
        prompt=random.integers(2, 129280, size=length, dtype=np.int32).tobytes(),
        params=params,
        priority=0,
        arrival=0.0,
        deadline=None,
        salt=b"",
    )
