"""A second reader of the published checkpoint layout, for tests only (model_spec 4).

It parses the safetensors container and the number formats by itself, from bytes, one element at a time
through lookup tables. Sharing the project's reader would hide its mistakes from every test that compares
against the oracle.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from .arithmetic import Array

_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _e4m3(byte: int) -> float:
    sign, exponent, mantissa = byte >> 7, (byte >> 3) & 0xF, byte & 0x7
    if exponent == 15 and mantissa == 7:
        return math.nan
    magnitude = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -magnitude if sign else magnitude


def _e8m0(byte: int) -> float:
    return math.nan if byte == 255 else 2.0 ** (byte - 127)


def _e2m1(nibble: int) -> float:
    return -_E2M1[nibble & 7] if nibble & 8 else _E2M1[nibble]


E4M3 = np.array([_e4m3(b) for b in range(256)])
E8M0 = np.array([_e8m0(b) for b in range(256)])
E2M1 = np.array([_e2m1(b) for b in range(16)])


def bfloat16(raw: Array) -> Array:
    """uint16 bit patterns -> float64."""
    return (raw.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def blocked_fp8(data: Array, scale: Array, rows_per_scale: int) -> Array:
    """e4m3 bytes [O, I] with one e8m0 byte per `rows_per_scale` rows and 32 columns."""
    rows = np.arange(data.shape[0]) // rows_per_scale
    columns = np.arange(data.shape[1]) // 32
    return E4M3[data] * E8M0[scale][rows][:, columns]


def mxfp4(packed: Array, scale: Array) -> Array:
    """Two e2m1 elements per byte, the even one in the low nibble; one e8m0 byte per row and 32 columns."""
    unpacked = np.empty((packed.shape[0], 2 * packed.shape[1]))
    unpacked[:, 0::2] = E2M1[packed & 0xF]
    unpacked[:, 1::2] = E2M1[packed >> 4]
    return unpacked * np.repeat(E8M0[scale], 32, axis=1)


def _read_shard(path: Path) -> dict[str, tuple[str, Array]]:
    """name -> (stored dtype, raw integers or float32 in the stored shape)."""
    raw = path.read_bytes()
    header_end = 8 + int.from_bytes(raw[:8], "little")
    numpy_dtype = {"F32": "<f4", "BF16": "<u2"}
    tensors = {}
    for name, info in json.loads(raw[8:header_end]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        data = np.frombuffer(raw[header_end + begin : header_end + end], numpy_dtype.get(info["dtype"], "u1"))
        tensors[name] = (info["dtype"], data.reshape(info["shape"]))
    return tensors


def load_weights(directory: Path) -> dict[str, Array]:
    """Every weight of a checkpoint directory, dequantized to float64, under its published name."""
    stored: dict[str, tuple[str, Array]] = {}
    for shard in sorted(directory.glob("*.safetensors")):
        stored |= _read_shard(shard)
    weights = {}
    for name, (dtype, data) in stored.items():
        if name.endswith(".scale"):
            continue
        if dtype == "F32":
            weights[name] = data.astype(np.float64)
        elif dtype == "BF16":
            weights[name] = bfloat16(data)
        else:
            _, scale = stored[name.removesuffix(".weight") + ".scale"]
            if dtype == "I8":
                weights[name] = mxfp4(data, scale)
            else:
                weights[name] = blocked_fp8(data, scale, 1 if name.endswith("engram.embed.weight") else 32)
    return weights
