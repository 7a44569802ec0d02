"""The engine with the built-in model on an NVIDIA card: steps, overlap, a trace, and a sweep of concurrency.

Every section runs alone within a minute, prints as it goes and writes JSON. `engine` is the short one that
has it all. `steps` times whole decode steps replayed and launched kernel by kernel; `overlap` puts the engine
under a steady load with and without overlap; `trace` leaves a trace of steady decode; `pareto` sweeps the
number of streams; `chart` draws what several runs of `pareto` found. `wide` puts the engine on six layers of
the published width instead: what a real model's steps leave of the host's time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
import uvloop

from stepahead import Engine, EngineConfig
from stepahead.devices.kernels.operations import REFERENCE
from stepahead.engine.model import opening
from stepahead.engine.model.opening import BUILT_IN, describe, numerics_for, open_sized_runner
from stepahead.engine.model.runner import SamplingRows
from stepahead.engine.model.step_trials import decode_step
from stepahead.engine.model.v41.runner import V41Runner
from stepahead.engine.sizing import runner_shape

from .gpu_chart import pareto_chart
from .gpu_load import Steady, steady
from .gpu_wide import measure_wide, wide_knobs

HELP = "the engine on an NVIDIA card: captured steps, overlap, a trace, throughput against per-user speed"

GOALS = (
    "goals: step <= 2 ms at 64 rows; busy >= 97 %, idle p50 <= 30 us at 64 sequences; overlap >= 1.1x, "
    "with speculation >= 1.3x; loop lag < 5 ms",
    "transformers 5.24's deepseek_v4 of the same size, measured on such a card: 57 to 82 ms a step, "
    "1,119 tokens/s at 64 sequences",
)
TRANSFORMERS = 1119.0
STEP_SEQUENCES = (1, 8, 64, 256)
SWEEP = (1, 4, 16, 64, 256)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--section", choices=sorted(SECTIONS), default="engine")
    parser.add_argument("--sequences", type=int, default=64, help="streams of `overlap` and `trace` (64)")
    parser.add_argument("--drafts", type=int, help="drafts a step; 0: no speculation (the model's own)")
    parser.add_argument("--verify", default="all", help="'adaptive', 'all' or a number of drafts (all)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=0.5, help="of each measurement (0.5)")
    parser.add_argument("--context", type=int, default=8192, help="max_context of the engines (8192)")
    parser.add_argument("--kv-blocks", type=int, help="of the caches (what memory leaves)")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--reference", action="store_true", help="plain torch, no kernels of ours")
    parser.add_argument("--files", type=Path, nargs="*", default=[], help="JSON of `pareto`, for `chart`")


def run(arguments: argparse.Namespace) -> None:
    if arguments.reference:
        opening.operations_for = lambda *asked: REFERENCE  # type: ignore[assignment]
    SECTIONS[arguments.section](arguments)


def knobs(arguments: argparse.Namespace, sequences: int, **changed: Any) -> EngineConfig:
    verify = arguments.verify
    values: dict[str, Any] = {
        "max_sequences": sequences,
        "max_step_rows": max(2048, 6 * sequences),
        "max_context": arguments.context,
        "kv_blocks": arguments.kv_blocks,
        "dtype": arguments.dtype,
        "draft_tokens": arguments.drafts,
        "trace_steps": 1024,
        "verify": int(verify) if verify.isdecimal() else verify,
    }
    return EngineConfig(**{**values, **changed})


# Sections.


def steps(arguments: argparse.Namespace) -> None:
    """Whole decode steps, replayed and launched kernel by kernel."""
    rows = []
    for drafts in (0, None) if arguments.drafts is None else (arguments.drafts,):
        arguments.drafts = drafts
        captured, eager = (_runner(arguments, graphs) for graphs in (True, False))
        for sequences in STEP_SEQUENCES:
            each = captured.shape.draft_tokens + 1
            times = [_milliseconds(runner, sequences, each) for runner in (captured, eager)]
            rows.append([sequences, sequences * each, each - 1, *times, times[1] / times[0]])
        report = captured.captured
        print(f"drafts {drafts}: {report}; operations: {captured._model.operations.name}", flush=True)
        captured.close()
        eager.close()
    _table("decode steps", ("sequences", "rows", "drafts", "graph ms", "eager ms", "ratio"), rows)
    _write("gpu_steps", rows)


@torch.inference_mode()
def _milliseconds(runner: V41Runner, sequences: int, each: int) -> float:
    """A step of nobody new, again and again; the device's time where it is the slower, else the host's."""
    plan, sample = decode_step(runner.shape, sequences, sequences * each, drafts=each > 1)
    old = msgspec.structs.replace(sample, updates=_nobody(sample.updates))
    graphs = runner._graphs
    key = None if graphs is None else graphs.key_of(plan)

    def step() -> None:
        if graphs is None or key is None:
            runner.run_now(plan, old)
        else:
            graphs.forward(plan, key)
            graphs.sample(plan, key)

    with runner._device.placing():
        runner.run_now(plan, sample)
        step()
        torch.cuda.synchronize()
        repeats = 5 if graphs is None else 30
        began = time.perf_counter()
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
        taken = (time.perf_counter() - began) / repeats
        runner._state.position[1:] = 0
    return 1e3 * taken


def _nobody(rows: SamplingRows) -> SamplingRows:
    return SamplingRows(**{name: getattr(rows, name)[:0] for name in rows.__struct_fields__})


def _runner(arguments: argparse.Namespace, graphs: bool) -> V41Runner:
    from stepahead.devices.nvidia import NvidiaDevice

    device = NvidiaDevice()
    most = max(STEP_SEQUENCES)
    config = knobs(arguments, most, kv_blocks=4096, **({} if graphs else {"graph_sequences": 0}))
    described = describe(BUILT_IN, numerics_for(device.torch_device, config.dtype))
    return open_sized_runner(described, lambda free: runner_shape(config, described.facts, free), device)


def engine(arguments: argparse.Namespace) -> None:
    """Overlap with and without speculation, then steps."""
    count, found = arguments.sequences, dict[str, Steady]()
    for drafts, name in ((0, "no drafts"), (None, "drafts")):
        arguments.drafts, arguments.context = drafts, 4096 if drafts == 0 else 8192
        for overlaps in (True, False):
            mode = f"{name}, {'overlap' if overlaps else 'no overlap'}"
            config = knobs(arguments, count, overlap=overlaps)
            found[mode] = _measured(config, count, arguments)
            print(_line(mode, found[mode]), flush=True)
        both, without = found[f"{name}, overlap"], found[f"{name}, no overlap"]
        print(f"  overlap {both.tokens_per_second / without.tokens_per_second:.2f}x; "
              f"{both.tokens_per_second / TRANSFORMERS:.0f}x transformers", flush=True)  # fmt: skip
    _write("gpu_engine", {name: msgspec.to_builtins(s) for name, s in found.items()})
    print(*GOALS, sep="\n", flush=True)
    arguments.drafts, arguments.context = 0, 1024
    steps(arguments)


def _line(mode: str, s: Steady) -> str:
    """One measurement, readable as it comes."""
    cells = ", ".join(
        f"{name} {_cell(value)}" for name, value in zip(STEADY[1:], _steady_row(s), strict=True)
    )
    host = ", ".join(f"{actor} {time:.0f}" for actor, time in s.host_us.items())
    pieces = ", ".join(f"{name} {long:.0f} after {wait:.0f}" for name, (long, wait) in s.pieces_us.items())
    return f"{mode}: {cells}\n  host us: {host}; pieces us: {pieces}"


def overlap(arguments: argparse.Namespace) -> None:
    count = arguments.sequences
    modes: dict[str, dict[str, Any]] = {
        "graphs, overlap": {},
        "graphs, no overlap": {"overlap": False},
        "eager, overlap": {"graph_sequences": 0},
    }
    found = {}
    for name, changed in modes.items():
        found[name] = _measured(knobs(arguments, count, **changed), count, arguments)
        print(_line(name, found[name]), flush=True)
    both, without = found["graphs, overlap"], found["graphs, no overlap"]
    rows = [[name, *_steady_row(measured)] for name, measured in found.items()]
    _table(f"{count} sequences, drafts {arguments.drafts}", STEADY, rows)
    print(f"overlap {both.tokens_per_second / without.tokens_per_second:.2f}x; "
          f"{both.tokens_per_second / TRANSFORMERS:.0f}x transformers")  # fmt: skip
    print(*GOALS, sep="\n")
    _write("gpu_overlap", {name: msgspec.to_builtins(s) for name, s in found.items()})


def trace(arguments: argparse.Namespace) -> None:
    path = _out() / "gpu_decode.json.gz"
    found = _measured(knobs(arguments, arguments.sequences), arguments.sequences, arguments, path)
    _table("traced", STEADY, [["steady decode", *_steady_row(found)]])
    print(f"written to {path}; draw it with `stepahead trace {path.name} --png FILE`")


def pareto(arguments: argparse.Namespace) -> None:
    name = f"verify {arguments.verify}" if arguments.drafts != 0 else "no speculation"

    async def sweep() -> list[Steady]:
        found = []
        async with Engine.open(config=knobs(arguments, max(SWEEP)), device="cuda") as engine:
            print(name, engine.stats().graphs, flush=True)
            for count in SWEEP:
                found.append(
                    await steady(engine, count, seconds=arguments.seconds, temperature=arguments.temperature)
                )
                print(_line(f"{count} streams", found[-1]), flush=True)
        return found

    found = uvloop.run(sweep())
    rows = [[s.sequences, *_steady_row(s), s.tokens_per_user] for s in found]
    _table(name, ("streams", *STEADY[1:], "tok/s user"), rows)
    _write(f"gpu_pareto_{name.replace(' ', '_')}", {name: [msgspec.to_builtins(s) for s in found]})


def chart(arguments: argparse.Namespace) -> None:
    lines: dict[str, list[tuple[float, float, int]]] = {}
    for file in arguments.files:
        for name, found in json.loads(file.read_text()).items():
            lines[name] = [
                (s["tokens_per_second"] / s["sequences"], s["tokens_per_second"], s["sequences"])
                for s in found
            ]
    path = _out() / "gpu_pareto.svg"
    path.write_text(pareto_chart(lines))
    print(f"written to {path}")


def wide(arguments: argparse.Namespace) -> None:
    """The engine on the full-width slice of `gpu_slice`, with and without overlap."""
    found: dict[str, Steady] = {}
    for overlaps in (True, False):
        config = wide_knobs(arguments.sequences, overlap=overlaps)
        mode = f"{arguments.sequences} sequences, {'overlap' if overlaps else 'no overlap'}"
        found[mode] = uvloop.run(measure_wide(config, arguments.sequences, arguments.seconds))
        print(_line(mode, found[mode]), flush=True)
    both, without = found.values()
    print(f"  overlap {both.tokens_per_second / without.tokens_per_second:.2f}x")
    _write(f"gpu_wide_{arguments.sequences}", {name: msgspec.to_builtins(s) for name, s in found.items()})


SECTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "engine": engine,
    "steps": steps,
    "overlap": overlap,
    "trace": trace,
    "pareto": pareto,
    "wide": wide,
    "chart": chart,
}

# Helpers.

STEADY = (
    *("mode", "tok/s", "steps/s", "tok/seq/step", "device ms"),
    *("busy", "idle p50 us", "p99", "lag p99 ms", "hidden"),
)


def _measured(
    config: EngineConfig, count: int, arguments: argparse.Namespace, file: Path | None = None
) -> Steady:
    async def main() -> Steady:
        async with Engine.open(config=config, device="cuda") as engine:
            print(engine.stats().graphs, flush=True)
            return await steady(
                engine, count, seconds=arguments.seconds, temperature=arguments.temperature, file=file
            )

    return uvloop.run(main())


def _steady_row(s: Steady) -> list[object]:
    return [
        s.tokens_per_second, s.steps_per_second, s.tokens_per_sequence_step, s.device_step_ms,
        f"{s.busy:.1%}", s.idle_p50_us, s.idle_p99_us, s.lag_p99_ms, f"{s.hidden:.1%}",
    ]  # fmt: skip


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Plain text: what a card's machine can always print."""
    print(f"\n{title} ({torch.cuda.get_device_name()}, torch {torch.__version__})")
    cells = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def _cell(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _out() -> Path:
    folder = Path(os.environ.get("OUT") or Path(__file__).parents[2] / "out")
    folder.mkdir(exist_ok=True)
    return folder


def _write(name: str, content: Any) -> None:
    path = _out() / f"{name}.json"
    path.write_text(json.dumps(content))
    print(f"written to {path}")
