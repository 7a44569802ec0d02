"""Replayed decode steps of the engine's runner equal the same work launched kernel by kernel, bit for bit.

    python scripts/gpu/check_captured.py [--dtype float32] [--sequences N] [--rounds N]

Decode steps of random members, totals and splits over random caches and slots, most with state copies and
new table entries: each once as replays and once as the work that was captured, its fix-ups made by themselves
before it. Compared are the logits, the packed results, every slot and every cache, save
the scratch places, where placeholders race. Prints a table; exits non-zero on a difference.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import sys
from collections.abc import Iterator

import msgspec
import numpy as np
import torch
from torch import Tensor

from stepahead import EngineConfig
from stepahead.devices.nvidia import NvidiaDevice
from stepahead.engine.model.opening import BUILT_IN, describe, numerics_for, open_sized_runner
from stepahead.engine.model.runner import Int32s, SamplePlan, StepPlan
from stepahead.engine.model.step_trials import decode_step
from stepahead.engine.model.v41.caches import group_ring, window_ring
from stepahead.engine.model.v41.captured import CapturedDecode, CaptureKey
from stepahead.engine.model.v41.roles import layer_roles
from stepahead.engine.model.v41.rows import BLOCK_TOKENS
from stepahead.engine.model.v41.runner import V41Runner
from stepahead.engine.sizing import runner_shape


def tensors(value: object) -> Iterator[Tensor]:
    """Every tensor in dataclasses, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors(each)
    elif isinstance(value, tuple | list):
        for each in value:
            yield from tensors(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors(getattr(value, field.name))


def everything(runner: V41Runner, graphs: CapturedDecode) -> list[Tensor]:
    """What a step may write."""
    buffers = graphs._buffers
    ours = [buffers.logits, buffers.first, buffers.verified, buffers.results]
    return [*tensors(runner._caches), *tensors(runner._state), *ours]


def clear_scratch(runner: V41Runner, graphs: CapturedDecode, real: int) -> None:
    """Slot 0, block 0, staging areas, and what is behind the real sequences: what placeholders leave there
    depends on which of them was the last to write the scratch slot.
    """
    config, caches = runner._model.config, runner._caches
    runner._wait()  # results are on the host
    for tensor in tensors(runner._state):
        tensor[0] = 0
    for pool in tensors(caches.window):
        pool[: window_ring(config)] = 0
        pool[caches.shape.state_slots * window_ring(config) :] = 0
    for role in layer_roles(config):
        if role.layer_id in caches.groups:
            ring = group_ring(config, role.ratio)
            for pool in tensors(caches.groups[role.layer_id]):
                pool[:ring] = 0
                pool[caches.shape.state_slots * ring :] = 0
        if role.layer_id in caches.entries:
            for pool in tensors(caches.entries[role.layer_id]):
                pool[: BLOCK_TOKENS // role.ratio] = 0
        if role.layer_id in caches.index_keys:
            for pool in tensors(caches.index_keys[role.layer_id]):
                pool[0] = 0
    graphs._buffers.results[real:] = 0


def fill(runner: V41Runner, generator: torch.Generator, vocab: int) -> None:
    """Slots as after some text: tables of their own, tokens, drafts, positions and confidences at random."""
    state, shape = runner._state, runner.shape
    slots, columns = shape.sequence_slots + 1, state.table.shape[1]

    def integers(low: int, high: int, like: Tensor) -> Tensor:
        return torch.randint(low, high, like.shape, generator=generator).to(like)

    state.token.copy_(integers(20, vocab, state.token))
    state.drafts.copy_(integers(20, vocab, state.drafts))
    state.history.copy_(integers(20, vocab, state.history))
    state.position.copy_(integers(1, columns * 128 - 64, state.position))
    state.confidence.copy_(torch.randn(state.confidence.shape, generator=generator).to(state.confidence))
    blocks = torch.arange(1, 1 + shape.sequence_slots * columns).view(-1, columns) % shape.blocks
    state.table[1:slots].copy_(blocks.to(state.table))
    for pool in tensors(runner._caches):
        if pool.is_floating_point():
            pool.copy_(torch.randn(pool.shape, generator=generator).to(pool))


def step_of(runner: V41Runner, dice: random.Random) -> tuple[StepPlan, SamplePlan]:
    shape, reach = runner.shape, runner.shape.draft_tokens + 1
    sequences = dice.randint(1, shape.sequence_slots)
    rows = dice.randint(sequences, sequences * reach)
    plan, sample = decode_step(shape, sequences, rows, drafts=dice.random() < 0.8)
    first = np.full(sequences, shape.max_positions - reach, dtype=np.int32)
    plan = msgspec.structs.replace(plan, first_positions=first, redeal=dice.random() < 0.5)
    copies, entries = fix_ups_of(runner, dice)
    plan = msgspec.structs.replace(plan, state_copies=copies, table_updates=entries)
    updates = sample.updates
    temperature = np.array([dice.choice((0.0, 0.8)) for _ in range(sequences)], dtype=np.float32)
    top_p = np.array([dice.choice((1.0, 0.9)) for _ in range(sequences)], dtype=np.float32)
    updates = msgspec.structs.replace(updates, temperature=temperature, top_p=top_p)
    return plan, msgspec.structs.replace(sample, updates=updates)


def fix_ups_of(runner: V41Runner, dice: random.Random) -> tuple[Int32s, Int32s]:
    """States saved of some slots, others restored over slots just saved; entries anywhere in the tables."""
    live, columns = runner.shape.sequence_slots, runner.shape.table_columns
    slots = dice.sample(range(1, live + 1), live)
    old, *kept = dice.sample(range(live + 1, runner.shape.state_slots), runner.shape.snapshot_slots)
    saves = list(zip(slots[1:], kept, strict=False))[: dice.choice((0, 1, 3, live))]
    restores = [(old, slot) for slot in slots[1 : dice.choice((1, 1, 2))]]
    places = dice.sample(
        [(slot, column) for slot in slots for column in range(columns)], dice.randint(0, live)
    )
    entries = [(*place, dice.randrange(1, runner.shape.blocks)) for place in places]
    copies = np.array(saves + restores, dtype=np.int32).reshape(-1, 2)
    return copies, np.array(entries, dtype=np.int32).reshape(-1, 3)


@torch.inference_mode()
def compare(
    runner: V41Runner, graphs: CapturedDecode, dice: random.Random
) -> tuple[CaptureKey, str, list[int]]:
    """The graphs used, the fix-ups, and the numbers of the tensors that differ."""
    plan, sample = step_of(runner, dice)
    key = graphs.key_of(plan)
    assert key is not None
    assert graphs.fixes(plan)
    runner._tables.update(sample.updates, None)
    variant = next(v for size, v in graphs._samplings if size == key.sequences and v.drafts == plan.drafts)
    before = [tensor.clone() for tensor in everything(runner, graphs)]
    graphs.forward(plan, key)
    graphs._samplings[key.sequences, variant].replay()
    clear_scratch(runner, graphs, plan.layout.slots.size)
    replayed = [tensor.clone() for tensor in everything(runner, graphs)]
    for tensor, old in zip(everything(runner, graphs), before, strict=True):
        tensor.copy_(old)
    runner._fix_upper.make(plan)
    graphs._buffers.give(plan, fixed=True)
    graphs._run_forward(key.rows, key.columns)
    graphs._run_sampling(key.sequences, variant)
    clear_scratch(runner, graphs, plan.layout.slots.size)
    launched = everything(runner, graphs)
    pairs = enumerate(zip(replayed, launched, strict=True))
    made = f"{len(plan.state_copies)} copies, {len(plan.table_updates)} entries"
    return key, made, [i for i, (a, b) in pairs if not torch.equal(a.nan_to_num(), b.nan_to_num())]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sequences", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    device = NvidiaDevice()
    config = EngineConfig(
        max_sequences=arguments.sequences,
        max_context=1024,
        max_step_rows=512,
        kv_blocks=512,
        dtype=arguments.dtype,
    )
    described = describe(BUILT_IN, numerics_for(device.torch_device, config.dtype))
    runner = open_sized_runner(described, lambda free: runner_shape(config, described.facts, free), device)
    graphs = runner._graphs
    assert graphs is not None
    print(torch.cuda.get_device_name(), "torch", torch.__version__, runner.captured, flush=True)
    dice, generator, failed = random.Random(0), torch.Generator().manual_seed(0), 0
    with device.placing():
        for number in range(arguments.rounds):
            with torch.inference_mode():
                fill(runner, generator, described.config.vocab_size)
            key, made, differing = compare(runner, graphs, dice)
            failed += bool(differing)
            print(number, key, made, f"differing tensors: {differing}" if differing else "equal", flush=True)
    print(f"{arguments.rounds - failed} of {arguments.rounds} steps equal bit for bit")
    runner.close()
    device.close()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
