"""Kernels against their twins: in Triton's interpreter on a CPU, compiled where there is a GPU.

The interpreter is chosen by an environment variable that Triton reads when a kernel is *defined*, so it is
set here, before any kernel module is imported. A test module begins with `pytest.importorskip("triton")` and
may then import kernels at its top.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("triton was imported before TRITON_INTERPRET could be set")
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _mend_the_interpreter() -> None:
    """Two things in which it differs from a card: its scalars are arrays of one element, which numpy no
    longer takes for the bounds of a loop; and it cuts float32 off to bfloat16 where a card rounds.
    """
    from triton import language
    from triton.runtime import interpreter

    patch, convert = interpreter._patch_lang_tensor, interpreter._convert_float

    def patch_with_index(tensor: type, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def convert_and_round(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if source != language.float32 or target != language.bfloat16:
            return convert(data, source, target, mode)
        bits = np.ascontiguousarray(data).view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        not_a_number = (bits & 0x7FFFFFFF) > 0x7F800000
        return np.where(not_a_number, bits >> 16 | 0x40, rounded).astype(np.uint16).reshape(data.shape)

    interpreter._patch_lang_tensor = patch_with_index
    interpreter._convert_float = convert_and_round


if os.environ.get("TRITON_INTERPRET") == "1" and find_spec("triton") is not None:
    _mend_the_interpreter()


@pytest.fixture(autouse=True)
def poisoned() -> Generator[None, None, None]:
    """New tensors begin as NaN (integers as their largest value): an element no kernel wrote shows."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)
