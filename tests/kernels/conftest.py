"""Kernels against their twins: in Triton's interpreter on a CPU, compiled where there is a GPU.

The interpreter is chosen by an environment variable that Triton reads when a kernel is *defined*, so it is
set here, before any kernel module is imported. A test module begins with `pytest.importorskip("triton")` and
may then import kernels at its top.
"""

from __future__ import annotations

import os
import sys

import pytest
import torch

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before TRITON_INTERPRET could be set")
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
