"""The forward's pieces by name, compiled one by one or as they are.

Compiling whole layers would recompile for every role a layer can have; the pieces have few shapes, and the
Python between them costs less than a step's launches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .attend import attend, project, project_output
from .experts import experts, route
from .indexer import index_loss, index_scores
from .memory import remember
from .streams import close_sublayer, open_sublayer

COMPILED = (
    open_sublayer, close_sublayer, project, attend, project_output, route, experts, remember, index_scores,
    index_loss,
)  # fmt: skip


class Calls:
    """The functions above by name, compiled one by one or as they are."""

    def __init__(self, compiled: bool) -> None:
        for function in COMPILED:
            setattr(self, function.__name__, torch.compile(function, dynamic=False) if compiled else function)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(name)
