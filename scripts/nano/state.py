"""Saving and resuming: the weights as parts small enough to travel, without the optimizer.

A training machine may hand back few and small files, so a state is at most a handful of safetensors parts
and large tensors are stored in bfloat16. Momentum is rebuilt in a few dozen steps after a resume; the
schedule continues where it was. Once weights have been rounded to their stored formats, bfloat16 holds them
exactly.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

_PART_BYTES = 14 << 20
_LARGE = 1 << 14


def save_state(folder: Path, weights: Mapping[str, Tensor], progress: dict[str, Any]) -> None:
    """Write `part-N.safetensors` and `progress.json`; mixing weights stay float32."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("part-*.safetensors"):
        old.unlink()
    part: dict[str, Tensor] = {}
    size = number = 0
    for name, weight in weights.items():
        keep = weight.numel() < _LARGE or "hc_" in name
        value = weight.detach().to("cpu", torch.float32 if keep else torch.bfloat16).contiguous()
        bytes_ = value.numel() * value.element_size()
        if part and size + bytes_ > _PART_BYTES:
            save_file(part, folder / f"part-{number}.safetensors")
            part, size, number = {}, 0, number + 1
        part[name], size = value, size + bytes_
    save_file(part, folder / f"part-{number}.safetensors")
    (folder / "progress.json").write_text(json.dumps(progress) + "\n")


def read_state(folder: Path) -> dict[str, Tensor]:
    """All tensors of a state, float32."""
    parts = [load_file(path) for path in sorted(folder.glob("part-*.safetensors"))]
    return {name: value.float() for part in parts for name, value in part.items()}


def load_state(folder: Path, weights: dict[str, Tensor]) -> dict[str, Any]:
    """Copy every saved tensor into `weights` (names must match) and return the progress record."""
    saved = read_state(folder)
    if missing := set(weights) - set(saved):
        raise ValueError(f"{folder} lacks {len(missing)} weights, among them {sorted(missing)[:3]}")
    with torch.no_grad():
        for name, weight in weights.items():
            weight.copy_(saved[name])
    return json.loads((folder / "progress.json").read_text())  # type: ignore[no-any-return]
