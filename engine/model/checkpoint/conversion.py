"""From one checkpoint to another of the same model: other shard sizes, plain floats quantized, names cleaned.

Quantized weights are copied byte by byte, because quantizing again could only lose; weights that the source
stores in plain floats (a training run's output) are quantized as the layout says.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ..v41.config import load_config
from .layout import tensor_specs
from .reader import CheckpointReader
from .writer import DEFAULT_SHARD_BYTES, OnTensor, Weight, write_checkpoint


def convert_checkpoint(
    source: Path,
    target: Path,
    *,
    max_shard_bytes: int = DEFAULT_SHARD_BYTES,
    requantize: bool = False,
    on_tensor: OnTensor | None = None,
) -> None:
    """Write the model in `source` to `target` in the published layout; they may be the same directory.

    With `requantize` quantized weights are expanded and rounded anew instead of copied. Raises `ConfigError`
    and `CheckpointError` for a faulty source, before anything is written.
    """
    config = load_config(source)
    specs = tensor_specs(config)
    reader = CheckpointReader(source)
    reader.verify(specs, allow_unquantized=True)

    def weight(name: str) -> Weight | None:
        if name not in reader:
            return None
        if requantize:
            return reader.read(name, torch.float32)
        return reader.read_stored(name, specs[name])

    write_checkpoint(target, config, weight, max_shard_bytes=max_shard_bytes, on_tensor=on_tensor)
