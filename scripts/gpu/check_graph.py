"""Capture decode steps of the model in a CUDA graph, replay them, and compare with eager runs.

    python scripts/gpu/check_graph.py [--model PATH] [--operations reference] [--dtype bfloat16] [--size 64x1]

What it shows: a decode forward and a draft round of fixed size need nothing from the host (capture would fail
otherwise), prefill neither (torch's synchronisation guard is set to raise), and a replay over new lengths,
tables and tokens gives the numbers of an eager run, bit for bit. With `--kernels` also what a replay consists
of: launches and device time by kernel. Exits non-zero on a failure.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from stepahead.devices.kernels.operations import REFERENCE, Operations
from stepahead.devices.kernels.selection import triton_operations
from stepahead.engine.model.opening import BUILT_IN, describe, load_model
from stepahead.engine.model.v41.batch import Batch, SequenceChunk, build_batch
from stepahead.engine.model.v41.caches import Caches, CacheShape
from stepahead.engine.model.v41.model import Model
from stepahead.engine.model.v41.numerics import Numerics, exact
from stepahead.engine.model.v41.rows import lay_rows, uniform_tiles

DEVICE = torch.device("cuda")
BLOCKS_PER_SEQUENCE = 8
PROMPT_LENGTHS = (40, 130, 257, 383, 500, 611)


def open_model(folder: Path, numerics: Numerics, operations: Operations) -> Model:
    random_weights = not any(folder.glob("*.safetensors"))
    described = describe(folder, numerics)
    return load_model(described, DEVICE, random_weights=random_weights, operations=operations)


def prompt_batch(sequences: int, vocab: int, ngram: int) -> Batch:
    generator = torch.Generator().manual_seed(1)
    chunks = []
    for s in range(sequences):
        length = PROMPT_LENGTHS[s % len(PROMPT_LENGTHS)]
        ids = torch.randint(300, vocab, (length,), generator=generator).tolist()
        chunks.append(SequenceChunk(ids, 0, s + 1, blocks_of(s)))
    return build_batch(chunks, DEVICE, ngram=ngram)


def blocks_of(sequence: int) -> list[int]:
    first = 1 + sequence * BLOCKS_PER_SEQUENCE
    return list(range(first, first + BLOCKS_PER_SEQUENCE))


@dataclasses.dataclass
class DecodeInputs:
    """The tensors that change from replay to replay; everything else follows from them on the device."""

    tokens: torch.Tensor  # [sequences, rows_each]
    first: torch.Tensor  # [sequences]
    history: torch.Tensor  # [sequences, ngram - 1]

    def batch(self, rows_each: int) -> Batch:
        sequences = self.first.shape[0]
        lengths = torch.full_like(self.first, rows_each)
        tiles = uniform_tiles(sequences, rows_each, DEVICE)
        slots = torch.arange(1, sequences + 1, device=DEVICE)
        columns = torch.arange(BLOCKS_PER_SEQUENCE, device=DEVICE)
        table = 1 + (slots - 1).unsqueeze(1) * BLOCKS_PER_SEQUENCE + columns
        zero = torch.zeros_like(self.first)
        return Batch(
            token_ids=self.tokens.flatten(),
            rows=lay_rows(self.first, lengths, sequences * rows_each, tiles),
            state_slot=slots,
            block_table=table,
            history=self.history,
            window_floor=zero,
            consumer_floor=zero,
            entry_floor=zero,
        )


def step(model: Model, inputs: DecodeInputs, caches: Caches, rows_each: int) -> tuple[torch.Tensor, ...]:
    """One verification step and the draft round that follows it."""
    batch = inputs.batch(rows_each)
    logits = model.forward(batch, caches).logits
    newest = logits.view(-1, rows_each, logits.shape[-1])[:, -1].argmax(-1)
    drafts = model.draft(newest, inputs.first + rows_each - 1, batch.state_slot, caches).greedy(newest)
    return logits, drafts.tokens, drafts.logits, drafts.confidence


def randomize(inputs: DecodeInputs, vocab: int, seed: int) -> None:
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    inputs.tokens.copy_(torch.randint(300, vocab, inputs.tokens.shape, generator=generator, device=DEVICE))
    inputs.history.copy_(torch.randint(300, vocab, inputs.history.shape, generator=generator, device=DEVICE))
    lengths = torch.tensor(PROMPT_LENGTHS, device=DEVICE).repeat(inputs.first.shape[0])
    inputs.first.copy_(lengths[: inputs.first.shape[0]] - seed % 3)


def clone(caches: Caches) -> Caches:
    return dataclasses.replace(
        caches,
        window=tuple(pool.clone() for pool in caches.window),
        groups={k: pool.clone() for k, pool in caches.groups.items()},
        entries={k: pool.clone() for k, pool in caches.entries.items()},
        index_keys={k: pool.clone() for k, pool in caches.index_keys.items()},
    )


def check(model: Model, sequences: int, rows_each: int, kernels: int) -> dict[str, object]:
    config = model.config
    shape = CacheShape(1 + sequences * BLOCKS_PER_SEQUENCE, sequences + 1, max_rows=sequences * 640)
    caches = model.new_caches(shape)
    prompts = prompt_batch(sequences, config.vocab_size, config.engram_max_ngram_size)
    model.forward(prompts, caches)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        model.forward(prompts, caches)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    inputs = DecodeInputs(
        torch.zeros(sequences, rows_each, dtype=torch.int64, device=DEVICE),
        torch.zeros(sequences, dtype=torch.int64, device=DEVICE),
        torch.zeros(sequences, config.engram_max_ngram_size - 1, dtype=torch.int64, device=DEVICE),
    )
    randomize(inputs, config.vocab_size, 0)
    eager_caches = clone(caches)
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(2):
                step(model, inputs, caches, rows_each)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = step(model, inputs, caches, rows_each)
        equal = True
        for seed in range(5):
            randomize(inputs, config.vocab_size, seed)
            for pool, clean in zip(pools(caches), pools(eager_caches), strict=True):
                pool.copy_(clean)
            graph.replay()
            replayed = [tensor.clone() for tensor in captured]
            expected = step(model, inputs, clone(eager_caches), rows_each)
            equal &= all(torch.equal(a, b) for a, b in zip(replayed, expected, strict=True))
        launches = profile(graph, kernels)
        return {
            "sequences": sequences,
            "rows": sequences * rows_each,
            "replay equals eager": equal,
            "launches": launches,
            "eager ms": milliseconds(lambda: step(model, inputs, caches, rows_each)),
            "replay ms": milliseconds(graph.replay),
        }


def profile(graph: torch.cuda.CUDAGraph, shown: int) -> int:
    """Kernels, copies and fills of one replay; prints the `shown` that take longest together."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        graph.replay()
        torch.cuda.synchronize()
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    count: Counter[str] = Counter(event.name for event in events)
    spent: Counter[str] = Counter()
    for event in events:
        spent[event.name] += event.time_range.elapsed_us()
    for name, microseconds in spent.most_common(shown):
        print(f"  {count[name]:5d} x {name[:80]:80} {microseconds:8.1f} us")
    if shown:
        print(f"  {len(events):5d}   device busy {sum(spent.values()):.1f} us", flush=True)
    return len(events)


def pools(caches: Caches) -> list[torch.Tensor]:
    return [
        *caches.window,
        *caches.groups.values(),
        *caches.entries.values(),
        *caches.index_keys.values(),
    ]


def milliseconds(run: object, repeats: int = 20) -> float:
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()  # type: ignore[operator]
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return round(sorted(times)[repeats // 2] * 1e3, 3)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=BUILT_IN)
    parser.add_argument("--operations", choices=("reference", "triton"), default="triton")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), action="append")
    parser.add_argument(
        "--size", action="append", metavar="SEQUENCESxROWS", help="may be given several times"
    )
    parser.add_argument(
        "--kernels", type=int, default=0, metavar="N", help="print the N most expensive kernels"
    )
    arguments = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    failed = False
    sizes = arguments.size or ["1x1", "1x6", "16x6", "64x1", "64x6"]
    for dtype in arguments.dtype or ["float32", "bfloat16"]:
        numerics = exact(getattr(torch, dtype))
        operations = triton_operations(numerics.dtype) if arguments.operations == "triton" else REFERENCE
        model = open_model(arguments.model, numerics, operations)
        for sequences, rows_each in (map(int, size.split("x")) for size in sizes):
            row = check(model, sequences, rows_each, arguments.kernels)
            failed |= not row["replay equals eager"]
            print(str(numerics.dtype), row, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
