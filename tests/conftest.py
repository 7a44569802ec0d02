"""What every test runs under: both event loops, absent hardware skipped, no peer missing in CI.

Three facts about this project shape the suite. The engine lives inside loops it does not own, so an async
test that passes on one loop proves half: each runs on asyncio and on uvloop. Device tests need hardware that
most machines lack, so their markers skip them by asking the machine, never by a list kept by hand. And a
skipped fidelity test looks exactly like a passing one, so with `STEPAHEAD_REQUIRE_PEERS=1` (set by `.ci/run`,
which installs the peers) such a skip is a failure.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator, Mapping
from pathlib import Path

import pytest
import torch

# Kernels are interpreted where there is no GPU. Triton reads this when it is first imported, and some test
# module anywhere may be the first to import it, through a peer of ours; so it is said before any is.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

_COMPARED_WITH_PEERS = tuple(Path(__file__).parent / name for name in ("fidelity", "protocol"))
_HARDWARE = {"gpu": "cuda", "ascend": "npu"}


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Every async test runs once on each loop; its id names the loop."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    try:
        import uvloop
    except ImportError:  # not built for Windows
        return factories
    return {**factories, "uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True, scope="session")
def _step_costs_are_kept_here(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Engines of tests measure their steps once, and leave nothing in anybody's home."""
    folder = tmp_path_factory.mktemp("step-costs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stepahead.engine.step_costs.user_cache_folder", lambda: folder)
        yield


def _has_device(kind: str) -> bool:
    import torch

    backend = getattr(torch, kind, None)
    return backend is not None and bool(backend.is_available())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for marker, kind in _HARDWARE.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and not _has_device(kind):
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=f"no {kind} device on this machine"))


def _has_peers(path: Path) -> bool:
    return any(folder in path.parents for folder in _COMPARED_WITH_PEERS)


def _peers_required() -> bool:
    return os.environ.get("STEPAHEAD_REQUIRE_PEERS") == "1"


def _fail_instead_of_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip into a failure that repeats the skip's own reason."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    report.outcome = "failed"
    report.longrepr = f"STEPAHEAD_REQUIRE_PEERS=1 forbids skipping tests against a peer: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    needs_hardware = any(item.get_closest_marker(marker) for marker in _HARDWARE)
    is_skip = report.skipped and not hasattr(report, "wasxfail")
    if _peers_required() and is_skip and not needs_hardware and _has_peers(item.path):
        _fail_instead_of_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if _peers_required() and report.skipped and _has_peers(collector.path):
        _fail_instead_of_skip(report)
    return report
