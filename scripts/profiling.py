"""`scripts/profile`: one workload with overlap and without, and everything that a trace can say about both.

With `--paced` the device computes nothing and takes that long per step, in real time: then the host's own
work, actors, text and streams, is seen beside a device as fast as one likes, whatever this machine computes.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import io
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop
from benchmarks.simulation import simulated_opener

from stepahead import Engine, EngineConfig, SamplingParams
from stepahead.engine.backend import Opener, model_opener
from stepahead.engine.commands._trace_tables import Tables, print_comparison, print_summary
from stepahead.engine.model.opening import BUILT_IN
from stepahead.engine.text.tokenizer import Tokenizer
from stepahead.engine.tracing.picture import draw_window, typical_window
from stepahead.engine.tracing.png import MissingMatplotlibError, save_png
from stepahead.engine.tracing.reader import Trace, events, read_trace
from stepahead.engine.tracing.summary import Summary, summarise
from stepahead.engine.tracing.svg import html
from stepahead.engine.tracing.validation import problems

OUT = Path(__file__).parents[1] / "out" / "profile"
PROMPTS = (
    "Once upon a time",
    "Write a short story about a fox who could count.",
    "The old clock in the hall struck",
    "Explain why the sky is dark at night, in three sentences.",
)


def main() -> None:
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    paths = {mode: arguments.out / f"overlap_{mode}.json" for mode in ("on", "off")}
    for mode, path in paths.items():
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_workload(mode == "on", path, arguments))
    traces = {mode: _checked(path) for mode, path in paths.items()}
    summaries = {mode: summarise(trace) for mode, trace in traces.items()}
    for mode, trace in traces.items():
        _draw(trace, paths[mode])
        _write_summary(paths[mode], summaries[mode])
    text = io.StringIO()
    print_comparison(Tables(text), (paths["on"].name, paths["off"].name), (summaries["on"], summaries["off"]))
    (arguments.out / "compared.txt").write_text(text.getvalue())
    print(text.getvalue())
    print(*sorted(str(path) for path in arguments.out.iterdir()), sep="\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/profile", description=__doc__)
    parser.add_argument("--sequences", type=int, default=4, metavar="N", help="requests at a time (4)")
    parser.add_argument("--tokens", type=int, default=48, metavar="N", help="tokens of each (48)")
    parser.add_argument(
        "--backing", choices=("thread", "process"), default="process", help="where the CPU computes"
    )
    parser.add_argument("--paced", type=float, metavar="MS", help="a simulated device with steps of MS ms")
    parser.add_argument("--torch", action="store_true", help="with torch.profiler's events (thread backing)")
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER")
    return parser.parse_args()


async def _workload(overlap: bool, path: Path, arguments: argparse.Namespace) -> None:
    count = arguments.sequences
    config = EngineConfig(
        overlap=overlap,
        max_sequences=max(count, 8),
        max_step_rows=max(2048, 8 * count),
        cpu_backing="thread" if arguments.paced else arguments.backing,
    )
    params = SamplingParams(temperature=0.7, seed=0, max_tokens=arguments.tokens, ignore_eos=True)
    async with Engine.open(config=config, opener=_opener(arguments)) as engine:
        await _read(engine, PROMPTS[0], params)  # the first step of a process is not like the others
        async with engine.trace(path, torch=arguments.torch):
            prompts = [f"{PROMPTS[n % len(PROMPTS)]} {n}" for n in range(count)]
            await asyncio.gather(*(_read(engine, prompt, params) for prompt in prompts))


async def _read(engine: Engine, prompt: str, params: SamplingParams) -> None:
    async for _ in engine.stream(prompt, params):
        pass


def _opener(arguments: argparse.Namespace) -> Opener:
    if arguments.paced is None:
        return model_opener(None, "cpu")
    seconds = arguments.paced / 1000
    latency = functools.partial(_latency, seconds)
    return simulated_opener(latency=latency, real_time=True, tokenizer=Tokenizer.from_file(BUILT_IN))


def _latency(seconds: float, label: str) -> float:
    return seconds * (0.9 if label.startswith("forward") else 0.1)


def _checked(path: Path) -> Trace:
    found: Sequence[str] = problems(events(path))
    if found:
        raise SystemExit(f"{path} is not valid: {found[0]}")
    return read_trace(path)


def _draw(trace: Trace, path: Path) -> None:
    picture = draw_window(trace, *typical_window(trace))
    path.with_suffix(".html").write_text(html(picture), encoding="utf-8")
    try:
        save_png(picture, path.with_suffix(".png"))
    except MissingMatplotlibError as error:
        print(f"no PNG: {error}")


def _write_summary(path: Path, summary: Summary) -> None:
    text = io.StringIO()
    print_summary(Tables(text), summary, path.name)
    path.with_suffix(".txt").write_text(text.getvalue())
    encoded = msgspec.json.format(msgspec.json.encode(summary), indent=1)
    path.with_suffix(".summary.json").write_bytes(encoded + b"\n")


if __name__ == "__main__":
    main()
