"""Every kernel that may start before its predecessor has ended waits for it before it touches anything."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest

pytest.importorskip("triton")

from stepahead.devices.kernels import triton as kernels
from stepahead.devices.kernels.triton import early_start


def early_kernels() -> Iterator[Any]:
    for info in iter_modules(kernels.__path__):
        module = import_module(f"{kernels.__name__}.{info.name}")
        for name, found in vars(module).items():
            names = getattr(found, "arg_names", ())
            if "EARLY" in names and found.fn.__module__ == module.__name__ and name != "follow":
                yield found


@pytest.mark.parametrize("kernel", list(early_kernels()), ids=lambda kernel: kernel.fn.__name__)
def test_a_kernel_waits_before_it_touches_memory(kernel: Any) -> None:
    before, wait, _ = inspect.getsource(kernel.fn).partition("follow(EARLY)")
    assert wait
    assert "tl.store(" not in before
    assert "tl.load(" not in before
    assert "atomic" not in before


def test_there_are_such_kernels() -> None:
    assert {"_stream", "gate_up", "_attend"} <= {kernel.fn.__name__ for kernel in early_kernels()}


def test_the_interpreter_starts_nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_start, "ENABLED", 1)
    if early_start.INTERPRETED:
        assert early_start.early() == {"EARLY": 0}
    else:
        assert bool(early_start.early()["EARLY"]) == early_start.early().get("launch_pdl", False)
