"""Rewrite a checkpoint in the published layout, with the files a model is served with beside its weights.

The source is compared with its own configuration first, and every fault is listed before anything is written.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path

from ..errors import InvalidParameterError
from ._progress import tensor_progress

HELP = "re-shard and quantize a checkpoint"

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", re.IGNORECASE)
_COMPANIONS = ("tokenizer*.json", "special_tokens_map.json", "generation_config.json", "LICENSE*")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", type=Path, help="checkpoint folder with its config.json")
    parser.add_argument("target", type=Path, help="folder to write; may be the source")
    parser.add_argument(
        "--max-shard-size", default="5GB", metavar="SIZE", help="largest file, such as 500MB or 5GB (5GB)"
    )
    parser.add_argument(
        "--requantize",
        action="store_true",
        help="round quantized weights anew instead of copying their bytes",
    )


def run(arguments: argparse.Namespace) -> int:
    from ..model.checkpoint.conversion import convert_checkpoint

    max_shard_bytes = parse_size(arguments.max_shard_size)
    with tensor_progress("converting", sys.stderr) as on_tensor:
        convert_checkpoint(
            arguments.source,
            arguments.target,
            max_shard_bytes=max_shard_bytes,
            requantize=arguments.requantize,
            on_tensor=on_tensor,
        )
    _copy_companions(arguments.source, arguments.target)
    print(f"wrote {arguments.target}")
    return 0


def parse_size(text: str) -> int:
    """Bytes of a size such as `500MB`, `5 GB` or `1000`; units are powers of 1000."""
    match = _SIZE.fullmatch(text.strip())
    size = round(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if size <= 0:
        raise InvalidParameterError("--max-shard-size", text, "a positive size such as 500MB or 5GB")
    return size


def _copy_companions(source: Path, target: Path) -> None:
    """Tokenizer and generation settings; anything else in the source is not the model's."""
    if source.resolve() == target.resolve():
        return
    for pattern in _COMPANIONS:
        for file in source.glob(pattern):
            shutil.copyfile(file, target / file.name)
