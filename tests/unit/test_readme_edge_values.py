"""The README's table of edge values is the one the engine is tested with."""

from __future__ import annotations

from pathlib import Path

from stepahead.engine.config import EDGE_VALUES, EdgeValue

README = Path(__file__).parents[2] / "README.md"


def _row(edge: EdgeValue) -> str:
    served = "served" if isinstance(edge.outcome, dict) else f"`{edge.outcome.__name__}`"
    return f"| {edge.case} | {served} | {edge.meaning} |"


def edge_value_table() -> str:
    return "\n".join(["| value | outcome | meaning |", "|---|---|---|", *map(_row, EDGE_VALUES)])


def test_the_readme_shows_every_edge_value() -> None:
    assert edge_value_table() in README.read_text(encoding="utf-8")
