"""From a trained state to the published checkpoint layout."""

from __future__ import annotations

from pathlib import Path

from stepahead.engine.model.checkpoint.writer import write_checkpoint
from stepahead.engine.model.v41.config import load_config

from .parameters import stacked_specs, unstack
from .state import read_state

_SHARD_BYTES = 12 << 20  # several shards: the built-in model also exercises the sharded index


def export(state: Path, model_folder: Path) -> None:
    """Quantize the weights of `state` and write them, with index and configuration, into `model_folder`.

    Weights of a finished state lie on the grid of their stored format already, so nothing is lost here.
    """
    config = load_config(model_folder)
    weights = read_state(state)
    missing = set(stacked_specs(config)) - set(weights)
    if missing:
        raise ValueError(f"{state} lacks {len(missing)} weights, among them {sorted(missing)[:3]}")
    write_checkpoint(model_folder, config, unstack(weights), max_shard_bytes=_SHARD_BYTES)
    size = sum(p.stat().st_size for p in model_folder.glob("*.safetensors"))
    print(f"wrote {size / 1e6:.1f} MB into {model_folder}")
