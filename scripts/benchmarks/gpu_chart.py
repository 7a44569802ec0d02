"""Throughput against per-user speed as an SVG: up is cheaper, right is faster, a line is one way to serve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

Point = tuple[float, float, int]
"""Tokens per second of a user, of all users, and how many they are."""

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 560, 90, 200, 50, 70
COLOURS = ("#4c78a8", "#f0a23b", "#59a14f", "#9d6fb3", "#d62728", "#7f7f7f")
_STEPS = (1, 2, 5)


class _Scale:
    """A logarithmic axis between two pixels."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low, self.high = min(values) / 1.15, max(values) * 1.15
        self._begin, self._span = begin, end - begin

    def __call__(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return self._begin + share * self._span

    def ticks(self) -> Iterator[float]:
        for power in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1):
            for step in _STEPS:
                if self.low <= (value := step * 10.0**power) <= self.high:
                    yield value


def pareto_chart(
    lines: Mapping[str, Sequence[Point]], title: str = "Throughput against per-user speed"
) -> str:
    """The drawing. Raises ValueError without a point."""
    points = [point for line in lines.values() for point in line]
    if not points:
        raise ValueError("a chart needs at least one point")
    x = _Scale([point[0] for point in points], LEFT, WIDTH - RIGHT)
    y = _Scale([point[1] for point in points], HEIGHT - BOTTOM, TOP)
    parts = [*_axes(x, y, title)]
    for number, (name, line) in enumerate(lines.items()):
        parts += _line(name, line, COLOURS[number % len(COLOURS)], number, x, y)
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="100%" height="100%" fill="white"/>\n'
        f"{body}\n</svg>\n"
    )


def _axes(x: _Scale, y: _Scale, title: str) -> Iterator[str]:
    yield f'<text x="{LEFT}" y="28" font-size="16">{escape(title)}</text>'
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in x.ticks():
        at = f"{x(value):.1f}"
        yield f'<line x1="{at}" x2="{at}" y1="{TOP}" y2="{bottom}" stroke="#ddd"/>'
        yield f'<text x="{at}" y="{bottom + 18}" text-anchor="middle">{value:,.0f}</text>'
    for value in y.ticks():
        at = f"{y(value):.1f}"
        yield f'<line x1="{LEFT}" x2="{right}" y1="{at}" y2="{at}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:,.0f}</text>'
    centre = (LEFT + right) / 2
    yield f'<text x="{centre}" y="{HEIGHT - 22}" text-anchor="middle">tokens/s per user</text>'
    middle = (TOP + HEIGHT - BOTTOM) / 2
    yield f'<text transform="translate(24 {middle}) rotate(-90)" text-anchor="middle">tokens/s in all</text>'


def _line(name: str, line: Sequence[Point], colour: str, number: int, x: _Scale, y: _Scale) -> Iterator[str]:
    path = " ".join(f"{x(user):.1f},{y(total):.1f}" for user, total, _ in line)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for user, total, streams in line:
        yield f'<circle cx="{x(user):.1f}" cy="{y(total):.1f}" r="4" fill="{colour}"/>'
        yield f'<text x="{x(user) + 6:.1f}" y="{y(total) - 6:.1f}" fill="{colour}">{streams}</text>'
    top = TOP + 20 * number + 10
    yield f'<rect x="{WIDTH - RIGHT + 16}" y="{top - 9}" width="12" height="12" fill="{colour}"/>'
    yield f'<text x="{WIDTH - RIGHT + 34}" y="{top + 1}">{escape(name)}</text>'
