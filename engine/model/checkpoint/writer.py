"""Write a model in the published checkpoint layout: quantized, sharded, and never half visible.

Everything is first written into a folder beside the target, one shard in memory at a time. Only then the
files are moved into place, the index last: a reader that finds an index finds the checkpoint it describes.
Other files of the target (tokenizer, README) are left alone.

Source: model_spec 4.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from uuid import uuid4

import msgspec
import torch
from safetensors.torch import save_file
from torch import Tensor

from ..v41.config import ModelConfig, to_document
from .errors import CheckpointError, CheckpointProblems
from .formats import QuantizedTensor, quantize
from .index import INDEX_NAME
from .layout import tensor_specs
from .storage import StorageKind, TensorSpec, scale_name

DEFAULT_SHARD_BYTES = 5 << 30

Weight = Tensor | QuantizedTensor
OnTensor = Callable[[int, int, str], None]
"""Called after every tensor with (tensors done, tensors in all, name)."""


def write_checkpoint(
    path: str | Path,
    config: ModelConfig,
    tensors: Iterable[tuple[str, Weight]] | Callable[[str], Weight | None],
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    on_tensor: OnTensor | None = None,
) -> None:
    """Write all weights of `config`, and its `config.json`, into the directory `path`; replaces a checkpoint.

    `tensors` gives (name, weight) pairs in any order, or is asked for each weight by name (None for an
    optional one that does not exist). Plain weights are quantized as the layout says; a `QuantizedTensor` is
    stored as it is. A shard holds at most `max_shard_bytes` of payload unless a single weight is larger.
    Raises `CheckpointError` for missing, unknown, repeated, misshapen or non-finite weights; `path` is then
    untouched.
    """
    target = Path(path).resolve()
    staging = target.with_name(f".{target.name}.{uuid4().hex[:8]}.partial")
    staging.mkdir(parents=True)
    try:
        _write_json(staging / "config.json", to_document(config))
        specs = tensor_specs(config)
        pairs = _asked(specs, tensors) if callable(tensors) else tensors
        stored = _checked(target, specs, pairs, on_tensor)
        weight_map, total_bytes = _write_shards(staging, stored, max_shard_bytes)
        index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
        _write_json(staging / INDEX_NAME, index)
        _move_into_place(staging, target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


Stored = dict[str, Tensor]  # the one or two file tensors of a weight


def _asked(specs: dict[str, TensorSpec], get: Callable[[str], Weight | None]) -> Iterator[tuple[str, Weight]]:
    for name in specs:
        weight = get(name)
        if weight is not None:
            yield name, weight


def _checked(
    target: Path,
    specs: dict[str, TensorSpec],
    pairs: Iterable[tuple[str, Weight]],
    on_tensor: OnTensor | None,
) -> Iterator[Stored]:
    """The file tensors of every weight; raises at the end of `pairs` if one of them was wrong."""
    problems = CheckpointProblems()
    seen: set[str] = set()
    for name, weight in pairs:
        if name not in specs:
            problems.extra.append(name)
        elif name in seen:
            problems.duplicate.append(name)
        else:
            _check_weight(problems, name, weight, specs[name])
            seen.add(name)
            if not problems:  # after a fault only the names of further ones matter
                yield _to_stored(name, weight, specs[name])
        if on_tensor is not None:
            on_tensor(len(seen), len(specs), name)
    problems.missing += [name for name, spec in specs.items() if name not in seen and not spec.optional]
    if problems:
        raise CheckpointError(target, problems)


def _check_weight(problems: CheckpointProblems, name: str, weight: Weight, spec: TensorSpec) -> None:
    shape = tuple(weight.shape)
    if shape not in (spec.shape, spec.other_shape):
        problems.misshapen.append(f"{name}: {list(shape)}, expected {list(spec.shape)}")
    elif isinstance(weight, QuantizedTensor):
        if weight.kind is not spec.kind:
            problems.wrong_dtype.append(f"{name}: {weight.kind.value}, expected {spec.kind.value}")
    elif not bool(torch.isfinite(weight).all()):
        problems.not_finite.append(name)


def _to_stored(name: str, weight: Weight, spec: TensorSpec) -> Stored:
    if isinstance(weight, Tensor) and not spec.kind.is_quantized:
        dtype = torch.float32 if spec.kind is StorageKind.FP32 else torch.bfloat16
        return {name: weight.detach().to("cpu", dtype).reshape(spec.shape).contiguous()}
    quantized = weight if isinstance(weight, QuantizedTensor) else quantize(weight.detach(), spec.kind)
    payload, scales = quantized.payload.cpu().contiguous(), quantized.scales.cpu().contiguous()
    if spec.kind is StorageKind.MXFP4:
        payload = payload.view(torch.int8)
    return {name: payload, scale_name(name): scales.view(torch.float8_e8m0fnu)}


def _write_shards(staging: Path, weights: Iterable[Stored], max_bytes: int) -> tuple[dict[str, str], int]:
    """Fill shard after shard. Returns the file of every tensor and the bytes of all tensors."""
    shards: list[list[str]] = []
    pending: Stored = {}
    pending_bytes = total_bytes = 0

    def flush() -> None:
        nonlocal pending_bytes
        save_file(pending, staging / f"shard-{len(shards)}", metadata={"format": "pt"})
        shards.append(list(pending))
        pending.clear()
        pending_bytes = 0

    for stored in weights:
        size = sum(tensor.nbytes for tensor in stored.values())
        if pending and pending_bytes + size > max_bytes:
            flush()
        pending.update(stored)
        pending_bytes += size
        total_bytes += size
    flush()
    return _name_shards(staging, shards), total_bytes


def _name_shards(staging: Path, shards: list[list[str]]) -> dict[str, str]:
    """Give the shards their published names, which contain their number: known only now."""
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards):
        file = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        (staging / f"shard-{number}").rename(staging / file)
        weight_map.update(dict.fromkeys(names, file))
    return weight_map


def _write_json(path: Path, document: object) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def _move_into_place(staging: Path, target: Path) -> None:
    readable = (staging / "config.json").stat().st_mode
    for file in staging.iterdir():
        file.chmod(readable)  # safetensors makes its files private; a checkpoint is as public as any new file
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
    if not target.exists():
        staging.rename(target)
        return
    # Without an index the old shards are no checkpoint any more, so no moment shows a mixture.
    (target / INDEX_NAME).unlink(missing_ok=True)
    for old in target.glob("model*.safetensors"):
        old.unlink()
    for file in sorted(staging.iterdir(), key=lambda file: file.name == INDEX_NAME):
        file.replace(target / file.name)
