"""Progress of long work over tensors: a bar on a terminal, a few lines where output is piped.

The library itself never prints; a command passes it the callback that this module makes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TextIO

OnTensor = Callable[[int, int, str], None]
"""Called after every tensor with (tensors done, tensors in all, name)."""

_LINES = 10


@contextlib.contextmanager
def tensor_progress(title: str, stream: TextIO) -> Iterator[OnTensor]:
    """A callback that shows how far `title` has come on `stream`."""
    if not stream.isatty():
        yield _plain_lines(title, stream)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    text = TextColumn("{task.description} {task.fields[tensor]}")
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text)
    with Progress(*columns, console=Console(file=stream), transient=True) as progress:
        task = progress.add_task(title, tensor="", total=None)
        yield lambda done, total, name: progress.update(task, completed=done, total=total, tensor=name)


def _plain_lines(title: str, stream: TextIO) -> OnTensor:
    """About ten lines in all, however many tensors there are."""
    last_step = 0

    def show(done: int, total: int, _name: str) -> None:
        nonlocal last_step
        step = done * _LINES // total
        if step > last_step:
            last_step = step
            print(f"{title}: {done}/{total} tensors", file=stream, flush=True)

    return show
