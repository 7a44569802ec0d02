"""Which operations a device gets, and that asking costs nobody an import."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from stepahead.devices.device import Capabilities
from stepahead.devices.kernels import selection
from stepahead.devices.kernels.operations import REFERENCE


def capabilities(kind: str = "nvidia", architecture: tuple[int, int] = (9, 0)) -> Capabilities:
    return Capabilities(
        kind=kind,
        name="a card",
        runs_on_enqueue=True,
        graphs=True,
        pinned_staging=True,
        architecture=architecture,
    )


@pytest.mark.parametrize(
    ("asked", "dtype", "quantized"),
    [
        (capabilities("cpu", (0, 0)), torch.float32, False),
        (capabilities("ascend"), torch.bfloat16, False),
        (capabilities(architecture=(7, 5)), torch.bfloat16, False),
        (capabilities(), torch.float64, False),
        (capabilities(), torch.float16, False),
        (capabilities(), torch.float32, True),
    ],
)
def test_what_no_kernel_serves_gets_the_reference(
    asked: Capabilities, dtype: torch.dtype, quantized: bool
) -> None:
    assert selection.operations_for(asked, dtype, quantized) is REFERENCE


def test_without_triton_a_card_runs_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "find_spec", lambda name: None)
    assert selection.operations_for(capabilities(), torch.bfloat16, False) is REFERENCE


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed (extra `nvidia`)")
def test_a_card_gets_the_triton_set_and_nobody_else_imports_it() -> None:
    """In a process of its own: what other tests have imported does not count."""
    script = """
import sys
import torch
from stepahead.devices.device import Capabilities
from stepahead.devices.kernels.selection import operations_for

def chosen(kind, architecture, dtype, quantized):
    asked = Capabilities(kind=kind, name="", runs_on_enqueue=True, graphs=True, pinned_staging=True,
                         architecture=architecture)
    return operations_for(asked, dtype, quantized).name

assert chosen("cpu", (0, 0), torch.float32, False) == "reference"
assert "triton" not in sys.modules
for architecture in ((9, 0), (10, 0), (12, 0)):
    assert chosen("nvidia", architecture, torch.bfloat16, True) == "triton"
    assert chosen("nvidia", architecture, torch.float32, False) == "triton"
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
