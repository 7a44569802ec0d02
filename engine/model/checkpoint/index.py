"""Where every tensor of a checkpoint lies, whatever shape the checkpoint has on disk.

A sharded directory with an index, a directory of `.safetensors` files without one, or a single file; names
with or without a `model.` prefix. Behind this module there is only: plain name -> (name in the file, file).

Source: model_spec 4.1, 4.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec
from safetensors import SafetensorError, safe_open

from .errors import CheckpointError, CheckpointProblems

INDEX_NAME = "model.safetensors.index.json"
_PREFIX = "model."
# Draft layers share the target's embedding and head; a file may carry copies of them.
_TIED_COPIES = re.compile(r"mtp\.\d+\.(embed|head)\.(weight|scale)")

Locations = dict[str, tuple[str, Path]]


def locate(path: Path) -> Locations:
    """Name in the file, and the file, of every tensor by plain name; tied copies are left out.

    Raises `CheckpointError` without a checkpoint and for one that cannot be opened.
    """
    if path.is_file():
        return _by_plain_name(path, _file_names(path, path))
    index = path / INDEX_NAME
    if index.exists():
        return _by_plain_name(path, _index_entries(path, index))
    files = sorted(path.glob("*.safetensors"))
    if not files:
        problems = CheckpointProblems(unreadable=[f"no {INDEX_NAME} and no .safetensors file"])
        raise CheckpointError(path, problems)
    return _by_plain_name(path, (pair for file in files for pair in _file_names(path, file)))


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _index_entries(path: Path, index: Path) -> list[tuple[str, Path]]:
    try:
        weight_map = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except msgspec.DecodeError as error:
        raise CheckpointError(path, CheckpointProblems(unreadable=[f"{index.name}: {error}"])) from error
    return [(name, path / file) for name, file in weight_map.items()]


def _file_names(path: Path, file: Path) -> list[tuple[str, Path]]:
    try:
        with safe_open(file, framework="pt") as opened:
            return [(name, file) for name in opened.keys()]  # noqa: SIM118 - not a mapping
    except (OSError, SafetensorError) as error:
        problems = CheckpointProblems(unreadable=[f"{file.name}: {error}"])
        raise CheckpointError(path, problems) from error


def _by_plain_name(path: Path, entries: Iterable[tuple[str, Path]]) -> Locations:
    located: Locations = {}
    problems = CheckpointProblems()
    for stored, file in entries:
        name = stored.removeprefix(_PREFIX)
        if _TIED_COPIES.fullmatch(name):
            continue
        if name in located:
            problems.duplicate.append(name)
        located[name] = (stored, file)
    if problems:
        raise CheckpointError(path, problems)
    return located
