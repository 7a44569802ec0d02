"""The package as installed: complete, typed, and inert when imported.

An editable install finds every folder, so a sub-package missing from pyproject is noticed only by the person
who installs the wheel. And an engine that lives in somebody else's process must change nothing there by being
imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("engine", "actors", "devices", "recipe")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

SNAPSHOT = """
import asyncio, json, logging, signal, sys, threading, warnings
def snapshot():
    return {
        "loop policy": repr(type(asyncio.get_event_loop_policy())),
        "signals": {str(s): repr(signal.getsignal(s)) for s in signal.valid_signals()},
        "root level": logging.getLogger().level,
        "root handlers": [repr(h) for h in logging.getLogger().handlers],
        "logging disabled": logging.root.manager.disable,
        "threads": [t.name for t in threading.enumerate()],
        "excepthook": repr(sys.excepthook),
        "switch interval": sys.getswitchinterval(),
    }
before = snapshot()
import stepahead
after = snapshot()
print(json.dumps({"before": before, "after": after, "modules": sorted(sys.modules)}))
"""


def _packages_on_disk() -> set[str]:
    """Dotted names of all packages in the tree; the facade `engine/public` installs as `stepahead` itself."""
    found = {"stepahead"}
    for folder in FOLDERS:
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT).parts
            if parts != ("engine", "public"):
                found.add(".".join(("stepahead", *parts)))
    return found


def test_every_package_in_the_tree_is_listed_in_pyproject() -> None:
    listed = PYPROJECT["tool"]["setuptools"]["packages"]
    assert len(listed) == len(set(listed))
    assert set(listed) == _packages_on_disk()


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {module.parent for folder in FOLDERS for module in (ROOT / folder).rglob("*.py")}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_type_checkers_see_the_same_tree() -> None:
    links = ROOT / ".typing" / "stepahead"
    for name in FOLDERS:
        assert (links / name).resolve() == (ROOT / name).resolve()
    assert (links / "__init__.py").resolve() == (ROOT / "engine" / "public" / "__init__.py").resolve()
    assert (links / "py.typed").resolve() == (ROOT / "engine" / "py.typed").resolve()


def test_version_is_written_in_two_places_that_agree() -> None:
    import stepahead

    assert stepahead.__version__ == PYPROJECT["project"]["version"]
    assert all(hasattr(stepahead, name) for name in stepahead.__all__)


@pytest.fixture(scope="module")
def import_effects() -> dict[str, dict[str, object]]:
    """What `import stepahead` changed in a fresh interpreter in which any warning is an error."""
    command = [sys.executable, "-W", "error", "-c", SNAPSHOT]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    effects: dict[str, dict[str, object]] = json.loads(done.stdout)
    return effects


def test_importing_changes_nothing_in_the_process(import_effects: dict[str, dict[str, object]]) -> None:
    assert import_effects["after"] == import_effects["before"]


def test_importing_the_facade_does_not_import_torch(import_effects: dict[str, dict[str, object]]) -> None:
    heavy = {"torch", "transformers", "safetensors", "rich"}
    assert heavy.isdisjoint(import_effects["modules"])
