"""A line chart as SVG, in plain text: nothing to install, and a change of it shows in a diff."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 420, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 12, 34, 74


@dataclass(frozen=True, slots=True)
class Line:
    """One series: `values` stand over the marks of the x axis; None leaves a gap. A dashed line is a goal."""

    name: str
    colour: str
    values: Sequence[float | None]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel. `ticks` are (value, text) on the y axis, the first and the last of them its ends."""

    title: str
    x_title: str
    x_texts: Sequence[str]
    ticks: Sequence[tuple[float, str]]
    lines: Sequence[Line]
    logarithmic: bool = False

    def _x(self, at: int) -> float:
        return _LEFT + at * (_WIDTH - _LEFT - _RIGHT) / max(1, len(self.x_texts) - 1)

    def _y(self, value: float) -> float:
        low, high, here = (
            math.log10(max(each, 1e-9)) if self.logarithmic else each
            for each in (self.ticks[0][0], self.ticks[-1][0], value)
        )
        share = min(1.0, max(0.0, (here - low) / (high - low)))
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def svg(self, x_offset: int) -> list[str]:
        """Its elements."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        parts = [f'<g transform="translate({x_offset} 0)">', _text(_LEFT, 18, self.title, weight="bold")]
        for value, text in self.ticks:
            y = self._y(value)
            parts += [_path([(_LEFT, y), (right, y)], "#d0d4da", 1), _text(_LEFT - 6, y + 4, text, anchor="end")]
        for at, text in enumerate(self.x_texts):
            parts.append(_text(self._x(at), bottom + 16, text, anchor="middle"))
        parts.append(_text((_LEFT + right) / 2, bottom + 32, self.x_title, anchor="middle"))
        for number, line in enumerate(self.lines):
            points = [(self._x(at), self._y(value)) for at, value in enumerate(line.values) if value is not None]
            parts.append(_path(points, line.colour, 2, dashed=line.dashed))
            if not line.dashed:
                parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}"/>' for x, y in points]
            x, y = _LEFT + number % 2 * 180, bottom + 48 + number // 2 * 14
            parts += [
                _path([(x, y - 4), (x + 18, y - 4)], line.colour, 2, dashed=line.dashed),
                _text(x + 23, y, line.name),
            ]
        return [*parts, "</g>"]


def picture(charts: Sequence[Chart]) -> str:
    """The charts side by side, as one file."""
    width = _WIDTH * len(charts)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" viewBox="0 0 {width} {_HEIGHT}" '
        'font-family="sans-serif" font-size="11" fill="#24292f">'
    )
    body = [line for number, chart in enumerate(charts) for line in chart.svg(number * _WIDTH)]
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *body, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}">{escape(text)}</text>'


def _path(points: Sequence[tuple[float, float]], colour: str, width: int, *, dashed: bool = False) -> str:
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="{width}"{dashes}/>'
