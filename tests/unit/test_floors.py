"""The direction of imports, which is what keeps the house a house (ARCHITECTURE: four rooms, four rules).

Each floor imports only the floors below it: `devices`, then the pure part of `engine`, then `actors`, then
the face (`engine/engine.py`, `engine/public`, the command line), then `recipe`. The check reads the syntax
tree, so an import inside a function or under TYPE_CHECKING counts as well: a type is a dependency too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("engine", "actors", "devices", "recipe")
FACE = (
    "stepahead.engine.engine",
    *(f"stepahead.engine.{part}" for part in ("backend", "batches", "host", "intake", "opening")),
    *(f"stepahead.engine.{part}" for part in ("stream", "tracer", "wiring")),
    "stepahead.engine.public",
    "stepahead.engine.__main__",
    "stepahead.engine.commands",
)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _is_face(module: str) -> bool:
    return any(_within(module, face) for face in FACE)


def _is_pure_engine(module: str) -> bool:
    return _within(module, "stepahead.engine") and not _is_face(module)


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("stepahead", *parts)).removesuffix(".__init__")


def _base_of_relative_import(module: str, is_package: bool, level: int) -> str:
    parts = module.split(".")
    return ".".join(parts[: len(parts) - level + is_package])


def imported_names(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Absolute dotted names of everything `source` imports; `from a import b` yields `a.b`.

    `b` may be a module or a name inside `a`: for the prefix rules below it is the same.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base_of_relative_import(module, is_package, node.level) if node.level else ""
            origin = ".".join(part for part in (base, node.module or "") if part)
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def violation(module: str, imported: str) -> str | None:
    """Why `module` may not import `imported`, or None if it may."""
    if imported.split(".")[0] in FOLDERS:
        return "import the installed name stepahead.*, or one file becomes two modules"
    if _within(imported, "torch"):
        return _torch_violation(module)
    if not _within(imported, "stepahead"):
        return None
    if _within(module, "stepahead.devices"):
        return None if _within(imported, "stepahead.devices") else "devices imports nothing of ours"
    if _within(module, "stepahead.recipe"):
        return _recipe_violation(imported)
    if _within(module, "stepahead.actors"):
        return _actors_violation(imported)
    if _is_pure_engine(module):
        return _engine_violation(module, imported)
    return "the face is below recipe" if _within(imported, "stepahead.recipe") else None


def _torch_violation(module: str) -> str | None:
    if _within(module, "stepahead.devices") or _within(module, "stepahead.engine.model"):
        return None
    return "only devices and engine/model import torch"


def _recipe_violation(imported: str) -> str | None:
    is_internal = any(_within(imported, f"stepahead.{folder}") for folder in FOLDERS if folder != "recipe")
    return "recipe stands on the public API only: `from stepahead import ...`" if is_internal else None


def _actors_violation(imported: str) -> str | None:
    if _within(imported, "stepahead.actors"):
        return None
    if _within(imported, "stepahead.devices"):
        only_contract = _within(imported, "stepahead.devices.device")
        return None if only_contract else "actors know the device contract (devices/device.py), not a device"
    if _within(imported, "stepahead.engine.model"):
        only_interface = _within(imported, "stepahead.engine.model.runner")
        return None if only_interface else "actors know the model by its runner interface only"
    return None if _is_pure_engine(imported) else "actors import no face of the engine"


def _engine_violation(module: str, imported: str) -> str | None:
    if _within(imported, "stepahead.devices"):
        return None if _within(module, "stepahead.engine.model") else "only engine/model imports devices"
    return None if _is_pure_engine(imported) else "the pure engine imports no floor above it"


def _all_modules() -> list[Path]:
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]


@pytest.mark.parametrize("path", _all_modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_module_imports_only_floors_below(path: Path) -> None:
    module = _module_name(path)
    names = imported_names(path.read_text(), module, path.name == "__init__.py")
    broken = {name: reason for name in names if (reason := violation(module, name))}
    assert broken == {}


def test_the_facade_only_re_exports() -> None:
    tree = ast.parse((ROOT / "engine" / "public" / "__init__.py").read_text())
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.Expr)
    assert [type(node).__name__ for node in tree.body if not isinstance(node, allowed)] == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("stepahead.devices.cpu", "from stepahead.engine import types"),
        ("stepahead.devices.cpu", "import stepahead"),
        ("stepahead.engine.scheduling.planner", "import torch.nn as nn"),
        ("stepahead.engine.scheduling.planner", "def f():\n    from stepahead.devices import device"),
        ("stepahead.engine.scheduling.planner", "from ...actors import scheduler"),
        ("stepahead.engine.scheduling.planner", "from ..engine import Engine"),
        ("stepahead.engine.text.tokenizer", "from ..commands import generate"),
        ("stepahead.actors.sampler", "import torch"),
        ("stepahead.actors.sampler", "from stepahead.devices import nvidia"),
        ("stepahead.actors.sampler", "from stepahead.engine.model.v41 import model"),
        ("stepahead.actors.sampler", "from stepahead.engine.engine import Engine"),
        ("stepahead.engine.commands.generate", "from stepahead.recipe import http"),
        ("stepahead.engine.commands.generate", "if TYPE_CHECKING:\n    import torch"),
        ("stepahead.recipe.http", "from stepahead.engine.engine import Engine"),
        ("stepahead.recipe.http", "from ..engine import types"),
        ("stepahead.recipe.http", "import engine"),
    ],
)
def test_the_check_sees_each_kind_of_violation(module: str, source: str) -> None:
    assert any(violation(module, name) for name in imported_names(source, module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("stepahead.devices.cpu", "import torch\nfrom .device import Device"),
        ("stepahead.engine.model.v41.moe", "import torch\nfrom stepahead.devices import kernels"),
        ("stepahead.engine.scheduling.planner", "import numpy\nfrom ..types import Sequence"),
        ("stepahead.actors.sampler", "from stepahead.engine.sampling import seeds\nfrom .actor import Actor"),
        ("stepahead.actors.device_worker", "from stepahead.engine.model.runner import Runner"),
        ("stepahead.engine.engine", "from stepahead.actors.scheduler import Scheduler"),
        ("stepahead.recipe.http", "from stepahead import Engine\nfrom .protocols import chat"),
    ],
)
def test_the_check_allows_the_ways_down(module: str, source: str) -> None:
    assert [name for name in imported_names(source, module) if violation(module, name)] == []
