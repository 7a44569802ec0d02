"""Kernels against their twins: in Triton's interpreter on a CPU, compiled where there is a GPU.

The interpreter is chosen by an environment variable that Triton reads when a kernel is *defined*, so it is
set here, before any kernel module is imported. A test module begins with `pytest.importorskip("triton")` and
may then import kernels at its top.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before TRITON_INTERPRET could be set")
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _let_loops_end_at_loaded_numbers() -> None:
    """The interpreter's scalars are arrays of one element, which numpy no longer takes for integers."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_with_index(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patch_with_index


if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None:
    _let_loops_end_at_loaded_numbers()
