"""Small plots as SVG: bars with a whisker from least to most, and lines over a logarithmic axis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.bench.records import Spread

__all__ = ["Bar", "Line", "bars", "lines"]

WIDTH = 760
BAR_STEP = 22
LABEL_WIDTH = 300
PLOT_HEIGHT = 260
MARGIN = 50

OURS, THEIRS = "#1f6f8b", "#b8b8b8"
LINE_COLOURS = ("#1f6f8b", "#c8553d", "#588157", "#6d597a", "#8a8a8a")


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar. `is_ours`: in the stronger colour."""

    label: str
    value: Spread
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Line:
    """One line: x and its spread, in order of x."""

    label: str
    points: Sequence[tuple[float, Spread]]


def bars(title: str, unit: str, rows: Sequence[Bar]) -> str:
    """Return horizontal bars, from 0 on."""
    most = max((row.value.high for row in rows), default=1.0) or 1.0
    scale = (WIDTH - LABEL_WIDTH - 80) / most
    drawn = []
    for number, row in enumerate(rows):
        top = 40 + number * BAR_STEP
        middle = top + BAR_STEP / 2 - 2
        low, high = (LABEL_WIDTH + edge * scale for edge in (row.value.low, row.value.high))
        drawn += [
            _text(LABEL_WIDTH - 8, middle + 4, row.label, anchor="end"),
            f'<rect x="{LABEL_WIDTH}" y="{top}" width="{row.value.median * scale:.1f}" '
            f'height="{BAR_STEP - 5}" fill="{OURS if row.is_ours else THEIRS}"/>',
            f'<path d="M{low:.1f} {middle}H{high:.1f}" stroke="#222"/>',
            _text(high + 6, middle + 4, f"{row.value.median:.3g}"),
        ]
    return _svg(
        40 + len(rows) * BAR_STEP + 10, f"{title} ({unit}, median; line: min to max)", drawn
    )


def lines(title: str, x_title: str, unit: str, rows: Sequence[Line]) -> str:
    """Return lines of medians; x is logarithmic, y begins at 0."""
    points = [point for row in rows for point in row.points]
    if not points:
        return _svg(60, title, [])
    least_x, most_x = (math.log(edge([x for x, _ in points])) for edge in (min, max))
    most_y = max(spread.high for _, spread in points) or 1.0
    left, bottom = MARGIN + 20, 40 + PLOT_HEIGHT

    def place(x: float, y: float) -> tuple[float, float]:
        span = (most_x - least_x) or 1.0
        return (
            left + (math.log(x) - least_x) / span * (WIDTH - left - 220),
            bottom - y / most_y * PLOT_HEIGHT,
        )

    drawn = [f'<path d="M{left} 40V{bottom}H{WIDTH - 200}" fill="none" stroke="#222"/>']
    drawn += [
        _text(place(x, 0)[0], bottom + 16, _short(x), anchor="middle")
        for x in sorted({x for x, _ in points})
    ]
    for share in (0.5, 1.0):
        y = most_y * share
        drawn.append(_text(left - 6, place(points[0][0], y)[1] + 4, _short(y), anchor="end"))
    drawn.append(_text((left + WIDTH - 200) / 2, bottom + 34, x_title, anchor="middle"))
    for number, row in enumerate(rows):
        colour = LINE_COLOURS[number % len(LINE_COLOURS)]
        path = " ".join(
            "{}{:.1f} {:.1f}".format("L" if at else "M", *place(x, spread.median))
            for at, (x, spread) in enumerate(row.points)
        )
        drawn.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, spread in row.points:
            across, low = place(x, spread.low)
            high = place(x, spread.high)[1]
            drawn.append(f'<path d="M{across:.1f} {low:.1f}V{high:.1f}" stroke="{colour}"/>')
        drawn.append(_text(WIDTH - 190, 60 + number * 18, row.label, colour=colour))
    return _svg(bottom + 46, f"{title} ({unit}, median; line: min to max)", drawn)


def _short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">'
        f"{escape(text)}</text>"
    )


def _svg(height: float, title: str, drawn: Sequence[str]) -> str:
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
            'font-family="sans-serif" font-size="12">',
            f'<rect width="{WIDTH}" height="{height:.0f}" fill="#fff"/>',
            f'<text x="10" y="22" font-size="15" fill="#222">{escape(title)}</text>',
            *drawn,
            "</svg>\n",
        )
    )
