"""A full-width slice of DeepSeek-V4.1-Flash on one card: decode steps and prompt chunks, with floors.

A step of the slice is timed whole (a replayed CUDA graph), and by kernel (torch's profiler over replays). The
floor of a part is the larger of two times: the bytes it must move over the rate of a large copy on this card,
and its arithmetic over the rate of a large bfloat16 product. Bytes are those of the weights as they are
stored, of the distinct experts that this very batch chose, and of the cache entries that its rows read.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from stepahead.devices.kernels.selection import triton_operations
from stepahead.engine.model.v41.batch import Batch, SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import Caches, CacheShape
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import exact, parity
from stepahead.engine.model.v41.rows import BLOCK_TOKENS, lay_rows, uniform_tiles
from stepahead.engine.model.v41.weights import weight_bytes

from .gpu_slice_floors import Ceilings, Work, measure_ceilings, step_work
from .gpu_slice_model import BF16, DEVICE, KINDS, slice_config, slice_weights
from .gpu_slice_warm import compile_steps
from .report import print_table, write_json

HELP = "six layers of the published model at full width on an NVIDIA card, with floors"
PREFILL_ROWS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, nargs="*", default=[1024])
    parser.add_argument("--prefill", type=int, nargs="*", default=[], metavar="CONTEXT",
                        help=f"also a chunk of {PREFILL_ROWS} rows that ends at each CONTEXT")  # fmt: skip
    parser.add_argument("--warm", action="store_true", help="only compile the kernels, in parallel")
    parser.add_argument("--parity", action="store_true", help="round as the published engine does")
    parser.add_argument("--kernels", type=int, default=6, help="kernels listed for each step")


@dataclass
class Timed:
    microseconds: float
    kernels: dict[str, tuple[int, float]]  # launches and microseconds of one step, by name


def run(arguments: argparse.Namespace) -> None:
    begin = time.perf_counter()
    decodes = [(batch, context, 1) for context in arguments.context for batch in arguments.batch]
    prompts = [(1, context, PREFILL_ROWS) for context in arguments.prefill]
    # Prompts early: the largest caches come last, and a run may be cut off.
    steps = [*decodes[: len(arguments.batch)], *prompts, *decodes[len(arguments.batch) :]]
    if arguments.warm:
        compile_steps(steps, parity() if arguments.parity else exact(BF16))
        print(f"kernels of {len(steps)} steps compiled in {time.perf_counter() - begin:.1f} s")
        return
    ceilings = measure_ceilings()
    print(f"{torch.cuda.get_device_name()}: copy {ceilings.copy / 1e12:.2f} TB/s, "
          f"bfloat16 product {ceilings.product / 1e12:.0f} TFLOP/s")  # fmt: skip
    config = slice_config()
    weights = slice_weights(config)
    numerics = parity() if arguments.parity else exact(BF16)
    operations = triton_operations(BF16, torch.cuda.get_device_capability())
    model = Model(config, weights, numerics, operations=operations)
    print(f"{len(KINDS)} layers ({', '.join(KINDS)}), {weight_bytes(weights) / 1e9:.1f} GB of weights, "
          f"{numerics}, operations '{model.operations.name}', built in {time.perf_counter() - begin:.1f} s",
          flush=True)  # fmt: skip
    rows, details = [], []
    for batch, context, chunk in steps:
        try:
            row, detail = _measure(model, batch, context, chunk, ceilings, arguments.kernels)
        except torch.OutOfMemoryError as error:
            print(f"batch {batch} context {context} rows {chunk}: out of memory ({str(error)[:80]})")
            continue
        finally:
            torch.cuda.empty_cache()
        rows.append(row)
        details.append(detail)
        shares = f"{row[3]} of the floor, {row[-1]} without the head"
        print(f"[{time.perf_counter() - begin:.0f} s] {shares}; {detail}", flush=True)
    columns = ("step", "us", "floor us", "of floor", "bytes GB", "TFLOP", "experts", "without head")
    print_table("full-width slice", columns, rows)
    write_json("gpu_slice", {"steps": [list(row) for row in rows], "details": details})


def _measure(
    model: Model, batch: int, context: int, chunk: int, ceilings: Ceilings, shown: int
) -> tuple[tuple[str, ...], str]:
    columns = -(-context // BLOCK_TOKENS)
    rows = batch * chunk
    caches = model.new_caches(CacheShape(1 + batch * columns, batch + 1, max(rows, 16)))
    _fill(caches)
    inputs = _prompt(context, chunk, model) if chunk > 1 else _decode(batch, context, model)
    distinct: list[int] = []

    def probe(name: str, layer_id: int, tensor: Tensor) -> None:
        if name == "experts":
            distinct.append(int(tensor.unique().numel()))

    model.forward(inputs, caches, probe)
    timed = _time(lambda: model.forward(inputs, caches), graph=chunk == 1)
    work = step_work(model, batch, context, chunk, sum(distinct))
    total = Work.sum(work)
    floor, head = total.floor(ceilings), work["head"].floor(ceilings)
    name = f"prefill {chunk} rows to {context}" if chunk > 1 else f"decode {batch} at {context}"
    of_floor = floor / timed.microseconds
    by_part = _by_part(timed, work, ceilings)
    row = (
        name, f"{timed.microseconds:.0f}", f"{floor:.0f}", f"{of_floor:.0%}", f"{total.bytes / 1e9:.2f}",
        f"{total.flops / 1e12:.3f}", str(sum(distinct) // len(distinct)),
        f"{(floor - head) / (timed.microseconds - by_part['head'][0]):.0%}",
    )  # fmt: skip
    return row, _describe(name, timed, by_part, shown)


def _fill(caches: Caches) -> None:
    for pool in (
        *caches.window,
        *caches.groups.values(),
        *caches.entries.values(),
        *caches.index_keys.values(),
    ):
        pool.normal_()


def _decode(batch: int, context: int, model: Model) -> Batch:
    """One row each of sequences with `context - 1` tokens behind them, and blocks of their own."""
    columns = -(-context // BLOCK_TOKENS)
    first = torch.full((batch,), context - 1, device=DEVICE)
    slots = torch.arange(1, batch + 1, device=DEVICE)
    zero = torch.zeros_like(first)
    vocab, history = model.config.vocab_size, model.config.engram_max_ngram_size - 1
    return Batch(
        token_ids=torch.randint(3, vocab, (batch,), device=DEVICE),
        rows=lay_rows(first, torch.ones_like(first), batch, uniform_tiles(batch, 1, DEVICE)),
        state_slot=slots,
        block_table=1 + (slots - 1).unsqueeze(1) * columns + torch.arange(columns, device=DEVICE),
        history=torch.randint(3, vocab, (batch, history), device=DEVICE),
        window_floor=zero,
        consumer_floor=zero,
        entry_floor=zero,
    )


def _prompt(context: int, chunk: int, model: Model) -> Batch:
    """The last rows of one sequence of `context` tokens; its last row reaches the head."""
    ids = torch.randint(3, model.config.vocab_size, (chunk,)).tolist()
    table = range(1, 1 - (-context // BLOCK_TOKENS))
    whole = SequenceChunk(ids, context - chunk, 1, table, history=ids[:3])
    batch = build_batch([whole], DEVICE, ngram=model.config.engram_max_ngram_size)
    last = torch.tensor([chunk - 1], device=DEVICE)
    return Batch(**{**vars(batch), "logit_rows": last})


def _time(step: Callable[[], object], *, graph: bool) -> Timed:
    """Median of replays, and the kernels of one."""
    replay: Callable[[], object] = step
    if graph:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            step()
        replay = captured.replay
    replay()
    times = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        replay()
        torch.cuda.synchronize()
    kernels = {event.key: (event.count, event.self_device_time_total) for event in profile.key_averages()}
    return Timed(sorted(times)[len(times) // 2], {k: v for k, v in kernels.items() if v[1]})


_PARTS = {
    "experts": ("gate_up", "down", "combine", "route", "activate"),
    "linear": ("_stream", "_expand_weight"),
    "attention": ("attend", "sparse_attn", "turn", "join_tiles", "latents", "_store"),
    "indexer": ("score", "select", "visible", "index_step"),
    "streams": ("open_", "finish", "_expand", "_close", "_embed"),
}
"""By what kernel names contain. The largest product that the library launched once is the head's, others are
`linear`: for many rows among them those of the shared expert."""
_LIBRARY = ("gemm", "nvjet", "cutlass", "gemv", "splitK", "cublas")


def _by_part(timed: Timed, work: dict[str, Work], ceilings: Ceilings) -> dict[str, tuple[float, float]]:
    """Microseconds taken, and floor, of every part; what belongs to none is `rest`."""
    taken = dict.fromkeys([*work, "rest"], 0.0)
    library = [launched for name, launched in timed.kernels.items() if _is(name, _LIBRARY)]
    head = max((us for count, us in library if count == 1), default=0.0)
    for name, (_, us) in timed.kernels.items():
        if _is(name, _LIBRARY):
            continue
        part = next((part for part, words in _PARTS.items() if _is(name, words)), "rest")
        taken[part if part in taken else "rest"] += us
    taken["head"] = head
    taken["linear"] += sum(us for _, us in library) - head
    return {part: (us, work[part].floor(ceilings) if part in work else 0.0) for part, us in taken.items()}


def _is(name: str, words: tuple[str, ...]) -> bool:
    return any(word.lower() in name.lower() for word in words)


def _describe(name: str, timed: Timed, by_part: dict[str, tuple[float, float]], shown: int) -> str:
    parts = ", ".join(f"{part} {us:.0f} ({floor:.0f})" for part, (us, floor) in by_part.items() if us)
    ordered = sorted(timed.kernels.items(), key=lambda item: -item[1][1])
    kernels = "\n".join(f"    {us:8.1f} us {count:3d} x {key[:70]}" for key, (count, us) in ordered[:shown])
    launches = sum(count for count, _ in timed.kernels.values())
    return f"{name}: {timed.microseconds:.0f} us, {launches} launches; us (floor): {parts}\n{kernels}"
