"""A drawing as one HTML file without scripts or libraries: it opens anywhere, for years, and by mail."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape

from .labels import placed_labels
from .picture import Picture

WIDTH, LEFT, ROW, TOP = 1240.0, 150.0, 34.0, 84.0
BAR = 24.0
_CHARACTER = 6.3
_STYLE = (
    "body{margin:24px;font:12px system-ui,sans-serif;background:#fff;color:#222}"
    "text{font:11px system-ui,sans-serif}.title{font-size:17px;font-weight:600}.inside{fill:#fff}"
)


def html(picture: Picture) -> str:
    """A page with one drawing; pointing at a bar tells its times."""
    height = TOP + ROW * len(picture.rows) + 56
    body = "\n".join(_elements(picture, height))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(picture.title)}</title>'
        f"<style>{_STYLE}</style><body>\n"
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH + 20:g} {height:g}" width="100%">\n'
        f"{body}\n</svg></body></html>\n"
    )


def nice_step(length: float, most: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that divides `length` into at most `most` parts."""
    raw = length / most
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= raw)


def _elements(picture: Picture, height: float) -> Iterator[str]:
    scale = (WIDTH - LEFT) / (picture.end - picture.begin)
    bottom = TOP + ROW * len(picture.rows)

    def x(time: float) -> float:
        return LEFT + (time - picture.begin) * scale

    yield f'<text x="8" y="24" class="title">{escape(picture.title)}</text>'
    yield f'<text x="8" y="44">{escape(picture.subtitle)}</text>'
    for shade in picture.shades:
        width = max((shade.end - shade.begin) * scale, 0.6)
        yield (
            f'<rect x="{x(shade.begin):.2f}" y="{TOP - 14:g}" width="{width:.2f}" '
            f'height="{bottom - TOP + 14:g}" fill="{shade.colour}" fill-opacity="0.16">'
            f"<title>device idle {shade.end - shade.begin:,.0f} us: {shade.cause}</title></rect>"
        )
        if width > len(shade.cause) * _CHARACTER:
            middle = x((shade.begin + shade.end) / 2)
            yield (
                f'<text x="{middle:.1f}" y="{TOP - 18:g}" text-anchor="middle" fill="{shade.colour}">'
                f"{shade.cause}</text>"
            )
    for row, name in enumerate(picture.rows):
        y = TOP + ROW * row
        yield f'<text x="{LEFT - 10:g}" y="{y + 20:g}" text-anchor="end">{escape(name)}</text>'
        weight = 1.2 if row == picture.host_rows else 0.4
        yield f'<path d="M{LEFT:g} {y:g}H{WIDTH:g}" stroke="#888" stroke-width="{weight}"/>'
    for bar in picture.bars:
        width = max((bar.end - bar.begin) * scale, 1.2)
        edge = ' stroke="#fff" stroke-width=".6"' if width > 10 else ""
        yield (
            f'<rect x="{x(bar.begin):.2f}" y="{TOP + ROW * bar.row + 5:g}" width="{width:.2f}" '
            f'height="{BAR:g}" rx="2" fill="{bar.colour}"{edge}><title>{escape(bar.label)}: '
            f"{bar.end - bar.begin:,.1f} us at {bar.begin / 1e3:.3f} ms</title></rect>"
        )
    for bar, left, inside in placed_labels(picture, WIDTH - LEFT, _CHARACTER):
        kind = ' class="inside"' if inside else ""
        yield f'<text x="{x(left):.1f}" y="{TOP + ROW * bar.row + 21:g}"{kind}>{escape(bar.label)}</text>'
    for mark in picture.marks:
        place = f'cx="{x(mark.at):.1f}" cy="{TOP + ROW * mark.row + 4:g}"'
        yield f'<circle {place} r="8" fill="#222" stroke="#fff"/>'
        yield (
            f'<text x="{x(mark.at):.1f}" y="{TOP + ROW * mark.row + 8:g}" text-anchor="middle" '
            f'class="inside">{escape(mark.sign)}</text>'
        )
    yield from _axis(picture, x, bottom)
    yield (
        f'<text x="8" y="{height - 8:g}">A colour is a step. Shaded: the device waits '
        "(red: for the host, grey: for requests).</text>"
    )


def _axis(picture: Picture, x: object, bottom: float) -> Iterator[str]:
    assert callable(x)
    step = nice_step(picture.end - picture.begin, 8)
    tick = math.ceil(picture.begin / step) * step
    yield f'<path d="M{LEFT:g} {bottom:g}H{WIDTH:g}" stroke="#888" stroke-width="1"/>'
    while tick <= picture.end:
        yield f'<path d="M{x(tick):.2f} {bottom:g}v5" stroke="#888"/>'
        yield (
            f'<text x="{x(tick):.1f}" y="{bottom + 18:g}" text-anchor="middle">{tick / 1e3:,.6g} ms</text>'
        )
        tick += step
