"""A table for people and the same numbers for machines."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

OUT = Path(__file__).parents[2] / "out"


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> None:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table)
    for note in notes:
        console.print(f"  {note}", highlight=False)


def write_json(name: str, content: dict[str, Any]) -> Path:
    """Write `out/NAME.json` with what the numbers depend on beside them."""
    import torch

    OUT.mkdir(exist_ok=True)
    machine = {
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
    }
    path = OUT / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, **content}, indent=1) + "\n")
    return path
