"""One error for everything that is wrong with a checkpoint, so that a user repairs it once.

Stopping at the first bad tensor of 96,085 would take as many attempts as there are mistakes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ...errors import StepaheadError

_SHOWN_PER_KIND = 20


class CheckpointProblems(msgspec.Struct, kw_only=True):
    """Names of the tensors at fault, by kind. An entry may carry what was found behind its name."""

    missing: list[str] = []
    extra: list[str] = []
    misshapen: list[str] = []
    wrong_dtype: list[str] = []
    nan_scale: list[str] = []
    not_finite: list[str] = []
    duplicate: list[str] = []
    already_read: list[str] = []
    unreadable: list[str] = []

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)


class CheckpointError(StepaheadError, ValueError):
    """A checkpoint cannot be used as it is; `problems` has the names of all tensors at fault."""

    def __init__(self, path: Path | str, problems: CheckpointProblems) -> None:
        self.path = path
        self.problems = problems
        lines = [f"checkpoint {path} cannot be used:"]
        for kind in problems.__struct_fields__:
            lines += _describe(kind.replace("_", " "), getattr(problems, kind))
        super().__init__("\n".join(lines))


def _describe(kind: str, names: Sequence[str]) -> list[str]:
    if not names:
        return []
    lines = [f"  {kind} ({len(names)}):", *(f"    {name}" for name in names[:_SHOWN_PER_KIND])]
    if len(names) > _SHOWN_PER_KIND:
        lines.append(f"    ... and {len(names) - _SHOWN_PER_KIND} more")
    return lines
