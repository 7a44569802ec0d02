"""Run the device conformance suite and the CUDA tests on a card, also where pytest's plugins are missing.

    python scripts/gpu/check_device.py [name part]

The tests are those of `tests/device`; here each runs in a loop of its own, on asyncio's loop and on uvloop
where it exists. Prints one line a test; exits non-zero on a failure.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import pytest
import torch

Test = Callable[..., Any]


def without_plugin() -> None:
    """Test modules import the plugin for a decorator, which nobody needs here."""
    try:
        import pytest_asyncio  # noqa: F401
    except ImportError:
        stub: Any = types.ModuleType("pytest_asyncio")
        stub.fixture = lambda **_: lambda function: function
        sys.modules["pytest_asyncio"] = stub


def tests() -> list[tuple[str, Test]]:
    without_plugin()
    from tests.device import test_conformance, test_nvidia, test_timed_work
    from tests.device.subjects import SUBJECTS

    found: list[tuple[str, Test]] = []
    for name, function in _of(test_conformance):
        found.append((f"conformance {name}", _with_subject(function, SUBJECTS["nvidia"])))
    timed = test_timed_work.test_pieces_are_told_in_order_between_enqueue_and_completion
    found.append(("timed work", lambda: timed("nvidia")))
    for name, function in _of(test_nvidia):
        if any(mark.name == "gpu" for mark in getattr(function, "pytestmark", [])):
            found.append((f"cuda {name}", function))
    return found


def _of(module: types.ModuleType) -> list[tuple[str, Test]]:
    return [
        (name.removeprefix("test_"), function)
        for name, function in vars(module).items()
        if name.startswith("test_") and inspect.iscoroutinefunction(function)
    ]


def _with_subject(function: Test, make: Callable[[Path], Any]) -> Test:
    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            subject = make(Path(folder))
            try:
                await function(subject)
            finally:
                subject.close()

    return run


def loops() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    found: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:
        return found
    return {**found, "uvloop": uvloop.new_event_loop}


def outcome(test: Callable[[], Coroutine[Any, Any, None]], make_loop: Any) -> str:
    try:
        with asyncio.Runner(loop_factory=make_loop) as runner:
            runner.run(test())
    except pytest.skip.Exception as skip:
        return f"skipped: {skip}"
    except BaseException:
        return "FAILED\n" + traceback.format_exc(limit=-6)
    return "passed"


def main() -> int:
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    failed = 0
    for name, test in tests():
        if part not in name:
            continue
        for loop_name, make_loop in loops().items():
            began = time.perf_counter()
            said = outcome(test, make_loop)
            failed += said.startswith("FAILED")
            print(f"{time.perf_counter() - began:6.2f} s  {loop_name:8} {name}: {said}", flush=True)
    print("failed:", failed)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
